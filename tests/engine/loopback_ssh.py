"""A real ssh server on the loopback interface, with keys of its own, and a port that never answers."""

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SBIN = "/usr/sbin:/usr/local/sbin:/sbin"


@dataclass(frozen=True)
class SshServer:
    """A running server and what is needed to log in."""

    port: int
    user: str
    private_key: str
    host_key: str
    """Its public key, as in an authorized_keys file."""
    other_host_key: str
    """A public key of the same type that is not its own."""


@contextmanager
def ssh_server(folder: Path) -> Iterator[SshServer]:
    """Starts a server that lets the current user in with a new key."""
    sshd = _find_sshd()
    host, client, other = (_make_key(folder / name) for name in ("host", "client", "other"))
    authorized = folder / "authorized_keys"
    authorized.write_text(client.with_suffix(".pub").read_text())
    port = _free_port()
    configuration = folder / "sshd_config"
    root = os.geteuid() == 0
    configuration.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {host}\nAuthorizedKeysFile {authorized}\nPidFile none\n"
        f"PasswordAuthentication no\nStrictModes no\nPermitRootLogin yes\nUsePAM {'yes' if root else 'no'}\n"
        "PrintMotd no\nPrintLastLog no\nMaxStartups 100\nSubsystem sftp internal-sftp\n"
    )
    if root:
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd goes before a user has logged in
    log = folder / "sshd.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sshd, "-D", "-e", "-f", str(configuration)], stdin=subprocess.DEVNULL, stderr=output
        )
    try:
        _wait_for(port, process, log)
        yield SshServer(
            port=port,
            user=getpass.getuser(),
            private_key=client.read_text(),
            host_key=_public(host),
            other_host_key=_public(other),
        )
    finally:
        process.terminate()
        process.wait()


@contextmanager
def silent_port() -> Iterator[int]:
    """Gives a port on which connecting takes for ever: its queue of waiting connections is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = []
        try:
            for _ in range(8):
                connection = socket.socket()
                connection.setblocking(False)
                connection.connect_ex(listener.getsockname())
                waiting.append(connection)
            time.sleep(0.1)
            yield listener.getsockname()[1]
        finally:
            for connection in waiting:
                connection.close()


def _find_sshd() -> str:
    """Returns the ssh server's program; installs it where it is missing."""
    if found := shutil.which("sshd", path=_SBIN):
        return found
    # Without this the package starts a server of its own, for the whole machine.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    administrator = [] if os.geteuid() == 0 else ["sudo", "-n"]
    for command in (["update"], ["install", "-y", "--no-install-recommends", "openssh-server"]):
        done = subprocess.run(
            [*administrator, "apt-get", "-q", *command], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(
                "these tests need an ssh server, and installing it failed: apt-get "
                f"{command[0]}: {done.stderr.strip() or done.stdout.strip()}. Install openssh-server by hand."
            )
    found = shutil.which("sshd", path=_SBIN)
    assert found, "openssh-server is installed, but there is no sshd"
    return found


def _make_key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    return path


def _public(key: Path) -> str:
    return " ".join(key.with_suffix(".pub").read_text().split()[:2])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_for(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        assert process.poll() is None, f"sshd ended: {log.read_text()}"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"sshd does not listen: {log.read_text()}")
