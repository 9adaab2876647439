"""Keys of virtual nodes: host keys that follow from a node's name, and the login key."""

import os
import pwd
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from lab.errors import LabError
from spec.cluster import Cluster


def host_key(node: str) -> Ed25519PrivateKey:
    """Returns the ssh host key of a virtual node: it follows from the name, so that a catalogue can pin it."""
    return Ed25519PrivateKey.from_private_bytes(sha256(f"gb10-serving virtual node {node}".encode()).digest())


def public_line(key: Ed25519PrivateKey) -> str:
    """Returns the public half as type and base64 text."""
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def private_text(key: Ed25519PrivateKey) -> bytes:
    """Returns the private half as OpenSSH keeps it in a file."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def require_derived_host_key(cluster: Cluster, node: str) -> None:
    """Compares the host key that the cluster pins with the one that the virtual node will show.

    Raises:
        LabError: they differ.
    """
    derived = public_line(host_key(node))
    if cluster.nodes[node].host_key != derived:
        raise LabError(
            f"make virtual node {node}",
            "its host_key in the cluster is not the one that follows from its name",
            f"Write this in the cluster's file: host_key: {derived}",
        )


def _write_new(path: Path, content: bytes) -> None:
    """Writes a private file whole or not at all; a file that came first stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.new.{os.getpid()}")
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    try:
        os.link(unfinished, path)
    except FileExistsError:
        return
    finally:
        unfinished.unlink()


def login_key_path(cluster: Cluster) -> Path:
    """Returns the private key that logs in to the cluster's nodes.

    Raises:
        LabError: the cluster names none.
    """
    if cluster.ssh.identity_file is None:
        raise LabError(
            "find the login key of the virtual nodes",
            "the cluster has no ssh.identity_file",
            "Add it to the cluster's file, for example ~/.local/state/gb10-serving/lab/id_ed25519.",
        )
    return _as_ssh_sees_it(cluster.ssh.identity_file)


def _as_ssh_sees_it(path: str) -> Path:
    """Returns a path with `~` as ssh reads it: the home of the account, whatever $HOME says."""
    home = pwd.getpwuid(os.getuid()).pw_dir
    return Path(home) / path.removeprefix("~/") if path.startswith("~/") else Path(path)


def ensure_login_key(cluster: Cluster) -> str:
    """Makes the login key if there is none and returns its public line.

    Raises:
        LabError: the file at that place is not an ed25519 key without passphrase.
    """
    path = login_key_path(cluster)
    if not path.exists():
        _write_new(path, private_text(Ed25519PrivateKey.generate()))
    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise LabError(f"read the login key {path}", str(error), "Move the file away: a new one is made.") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise LabError(f"read the login key {path}", "it is not ed25519", "Move the file away: a new one is made.")
    return public_line(key)
