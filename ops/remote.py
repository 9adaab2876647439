"""Runs a verb of runtime/ on a node over ssh and says plainly why it did not work."""

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, cast

from ops.errors import OperationError
from ops.places import cache_folder
from ops.runtime_package import runtime_package
from runtime.node.progress import PREFIX
from spec.connection import Connection

_RUNTIME_IS_ABSENT = 91
_KEPT_OPEN_SECONDS = 15
"""A stack has dozens of tasks for each node: one connection serves them all (0.01 s each instead of 0.19 s)."""

_LONGEST_SOCKET_PATH = 107 - len(".0123456789abcdef")
"""What the kernel takes, less what ssh appends while it makes the socket."""

_SSH_FAILED = 255
_TIMED_OUT = (124, 137)


class NodeError(OperationError):
    """Raised when a node could not be reached or its verb failed; names the node."""


def run_on_node(
    connection: Connection,
    storage_folder: str,
    verb: str,
    request: dict[str, Any],
    payload: Iterable[bytes] = (),
    timeout_seconds: int = 120,
) -> Any:
    """Runs `verb` on the node with a JSON request and returns its JSON answer; its progress goes to our stderr.

    The runtime is put on the node first where this version of it is not there yet.

    Args:
        connection: the node.
        storage_folder: our folder on the node.
        verb: a verb of runtime.node.
        request: its request.
        payload: bytes that follow the request.
        timeout_seconds: after which the node itself ends the verb.

    Raises:
        NodeError: the node is unreachable, is not the pinned one, has no Python, timed out, or refused.
    """
    code, stdout, stderr = _attempt(connection, storage_folder, verb, request, payload, timeout_seconds)
    if code == _RUNTIME_IS_ABSENT:
        install_runtime(connection, storage_folder)
        code, stdout, stderr = _attempt(connection, storage_folder, verb, request, payload, timeout_seconds)
    if code:
        raise NodeError(explain(connection, verb, code, stderr, timeout_seconds))
    return json.loads(stdout)


def node_command(connection: Connection, storage_folder: str, verb: str, timeout_seconds: int) -> list[str]:
    """Returns the argv that runs a verb of the installed runtime on the node."""
    return _python_command(connection, storage_folder, f"timeout -k 5 {timeout_seconds}", "runtime.node", verb)


def session_command(connection: Connection, storage_folder: str, module: str, verb: str) -> list[str]:
    """Returns the argv that runs a verb which ends with its standard input, however long that takes."""
    return _python_command(connection, storage_folder, "", module, verb)


def _python_command(connection: Connection, storage_folder: str, under: str, module: str, verb: str) -> list[str]:
    """What Python compiles is kept beside the runtime, and no site is set up: a verb then starts in half the time."""
    folder = _runtime_folder(storage_folder)
    return ssh_command(
        connection,
        f"[ -d {folder} ] || exit {_RUNTIME_IS_ABSENT}; cd {folder} && exec {under} python3 -S -m {module} {verb}",
    )


def runtime_is_absent(code: int) -> bool:
    """Tells whether a verb did not run because this version of runtime/ is not on the node."""
    return code == _RUNTIME_IS_ABSENT


def ssh_command(connection: Connection, remote: str) -> list[str]:
    """Returns the argv that runs a shell text on the node, over a connection that an earlier one may have left open."""
    target = f"{connection.user}@{connection.address}"
    options = [*connection.ssh_options(), *_sharing_options(connection)]
    return ["ssh", *options, "-p", str(connection.port), target, remote]


def _sharing_options(connection: Connection) -> list[str]:
    """Returns the options that share a connection among all that know the node by the same key, address and login."""
    folder = cache_folder() / "ssh"
    socket = folder / hashlib.sha256(connection.model_dump_json().encode()).hexdigest()[:16]
    if len(str(socket)) > _LONGEST_SOCKET_PATH:
        return []
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    options = ("ControlMaster=auto", f"ControlPath={socket}", f"ControlPersist={_KEPT_OPEN_SECONDS}")
    return [word for option in options for word in ("-o", option)]


def install_runtime(connection: Connection, storage_folder: str) -> None:
    """Puts this checkout's runtime/ on the node, under the name of its content.

    Raises:
        NodeError: the node is unreachable or cannot take it.
    """
    folder = _runtime_folder(storage_folder)
    text = (
        f"set -e; t={folder}.$$; mkdir -p $t; trap 'rm -rf $t' EXIT; tar -x -f - -C $t; "
        f"mv -T $t {folder} 2>/dev/null || [ -d {folder} ]"
    )
    result = subprocess.run(
        ssh_command(connection, text), input=runtime_package().archive, capture_output=True, check=False
    )
    if result.returncode:
        raise NodeError(
            explain(connection, "install-runtime", result.returncode, result.stderr.decode(errors="replace"), 0)
        )


def stream_to_node(connection: Connection, remote: str, source: Path, timeout_seconds: int) -> None:
    """Runs a shell text on the node with a file of the controller as its standard input.

    Raises:
        NodeError: the node is unreachable or the text failed.
    """
    with source.open("rb") as file:
        result = subprocess.run(
            ssh_command(connection, f"timeout -k 5 {timeout_seconds} {remote}"),
            stdin=file,
            capture_output=True,
            text=True,
            check=False,
        )
    if result.returncode:
        raise NodeError(explain(connection, remote, result.returncode, result.stderr, timeout_seconds))


def _runtime_folder(storage_folder: str) -> str:
    return f"{storage_folder}/runtime/{runtime_package().hash[:32]}"


def _attempt(
    connection: Connection,
    storage_folder: str,
    verb: str,
    request: dict[str, Any],
    payload: Iterable[bytes],
    timeout_seconds: int,
) -> tuple[int, str, str]:
    process = subprocess.Popen(
        node_command(connection, storage_folder, verb, timeout_seconds),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    errors: list[str] = []
    listener = threading.Thread(target=_sort_words, args=(process.stderr, connection.node, errors), daemon=True)
    listener.start()
    try:
        stdin = cast(IO[bytes], process.stdin)
        try:
            stdin.write(json.dumps(request).encode() + b"\n")
            for chunk in payload:
                stdin.write(chunk)
            stdin.close()
        except BrokenPipeError:
            # The verb ended early; its exit code and words say why.
            stdin.close = lambda: None
        stdout = cast(IO[bytes], process.stdout).read().decode()
        process.wait()
    finally:
        process.kill()
        process.wait()
    listener.join()
    return process.returncode, stdout, "\n".join(errors)


def _sort_words(stream: IO[bytes] | None, node: str, errors: list[str]) -> None:
    """Shows progress as it comes and keeps the rest, which explains a failure."""
    for raw in stream or ():
        line = raw.decode(errors="replace").rstrip()
        if line.startswith(PREFIX):
            print(f"{node}: {line.removeprefix(PREFIX)}", file=sys.stderr, flush=True)
        else:
            errors.append(line)


def explain(connection: Connection, verb: str, code: int, stderr: str, timeout_seconds: int) -> str:
    """Says in words why a verb did not work on a node.

    Args:
        connection: the node.
        verb: what ran there.
        code: exit code of `ssh`.
        stderr: what the verb or ssh said.
        timeout_seconds: after which the node would have ended it; 0 for never.
    """
    where = f"{connection.node} ({connection.address})"
    last = stderr.strip() or f"`{verb}` ended without a word ({code})"
    if code == _SSH_FAILED and "host key" in last.lower():
        return (
            f"{where} does not show the host key that its cluster file pins, so it was not touched. If it was "
            f"reinstalled, put its new key (`ssh-keyscan -t ed25519 {connection.address}`) there. ssh said: {last}"
        )
    if code == _SSH_FAILED and "permission denied" in last.lower():
        key = connection.identity_file or "the keys of the ssh agent"
        return f"{where} does not accept {key} for user {connection.user}. ssh said: {last}"
    if code == _SSH_FAILED:
        return (
            f"{where} does not answer ssh within {connection.connect_timeout_seconds} s. Is it on, and is the "
            f"management network up? ssh said: {last}"
        )
    if code in _TIMED_OUT and timeout_seconds:
        return f"{where} did not finish `{verb}` within {timeout_seconds} s: {last}"
    if code == 127:
        return f"{where} lacks a program that every node needs (python3, tar, timeout): {last}"
    return f"{where}: {last}"
