"""The router of a pool on this node: its settings, which are changed without closing a connection, and its members."""

import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.node import checks
from runtime.node.docker import containers_of, docker, inspect
from runtime.node.errors import NodeTaskError
from runtime.node.ranks import process_ids

_SETTINGS, _SOCKET, _STATES = "haproxy.cfg", "admin.sock", "states"
_ANSWER_SECONDS = 5.0
_RELOAD_SECONDS = 20.0
_POLL_SECONDS = 0.2


def preflight(request: dict[str, Any]) -> dict[str, Any]:
    """May this node run the router, once what makes room is gone? Changes nothing.

    Args:
        request: `container`, `stack`, `port`, `leaving` (names of stacks that will be gone before).

    Raises:
        NodeTaskError: the port is taken, or the container's name is.
    """
    _own_container(request, request["leaving"])
    return {"passed": True}


def settle(request: dict[str, Any]) -> dict[str, Any]:
    """Checks and writes the settings of the router; one that runs takes them over and goes on with what it has begun.

    Args:
        request: `folder`, `container`, `image`, `program`, `seen_folder` (where the container sees the folder), `port`,
            `settings` (the text), `stack`.

    Raises:
        NodeTaskError: the port is taken, the settings are refused, or the running router did not take them over.
    """
    own = _own_container(request, leaving=())
    folder = Path(request["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f".{_SETTINGS}"
    new.write_text(request["settings"])
    _check(request, new.name)
    (folder / _STATES).touch()
    changed = not (folder / _SETTINGS).exists() or (folder / _SETTINGS).read_text() != request["settings"]
    new.replace(folder / _SETTINGS)
    if changed and own and own["State"]["Running"]:
        _reload(request, folder)
    return {"settled": True}


def remove(request: dict[str, Any]) -> dict[str, Any]:
    """Removes the folder of a router whose container has gone."""
    folder = Path(request["folder"])
    shutil.rmtree(folder, ignore_errors=True)
    if folder.parent.is_dir() and not any(folder.parent.iterdir()):
        folder.parent.rmdir()
    return {"removed": True}


def clear(request: dict[str, Any]) -> dict[str, Any]:
    """Removes a container that a killed `up` made under the router's name.

    Raises:
        NodeTaskError: it is not this stack's.
    """
    found = inspect("container", request["container"])
    _refuse_foreign(found, request)
    if found:
        docker("rm", "--force", request["container"])
    return {"cleared": True}


def members(request: dict[str, Any]) -> dict[str, Any]:
    """Returns what the router on this node says of its members.

    Args:
        request: `folder`, `container`.

    Returns:
        `state` (`running`, `ended` or `absent`), `image`, and per member its `status` (`UP`, `NOLB` while it drains,
        `DOWN`, or that after a reload until the first check), `requests` (running now) and `reason`.

    Raises:
        NodeTaskError: a router that runs does not answer.
    """
    found = inspect("container", request["container"])
    if found is None or not found["State"]["Running"]:
        return {"state": "ended" if found else "absent", "image": None, "members": {}}
    return {"state": "running", "image": found["Config"]["Image"], "members": _members(Path(request["folder"]))}


def wait_for_members(request: dict[str, Any]) -> dict[str, Any]:
    """Waits until the router sends requests to every one of `members`.

    Args:
        request: `folder`, `container`, `members` (names), `wait_seconds`.

    Raises:
        NodeTaskError: the router does not run, or a member did not come up in time.
    """
    deadline = time.monotonic() + request["wait_seconds"]
    while True:
        try:
            found = members(request)
            missing = [name for name in request["members"] if found["members"].get(name, {}).get("status") != "UP"]
            if not missing:
                return {"members": request["members"]}
            trouble = "; ".join(f"{name}: {found['members'].get(name, {'status': 'unknown'})}" for name in missing)
        except NodeTaskError as error:
            trouble = str(error)
        if time.monotonic() > deadline:
            log = docker("logs", "--tail", "20", request["container"], check=False)
            raise NodeTaskError(f"router: not every member takes requests: {trouble}\n{log.stdout}{log.stderr}")
        time.sleep(_POLL_SECONDS)


def _own_container(request: dict[str, Any], leaving: Sequence[str]) -> dict[str, Any] | None:
    """Returns the router's container, if it is there, once its name and port are known to be this stack's or free."""
    own = inspect("container", request["container"])
    _refuse_foreign(own, request)
    taken = checks.port(
        request["port"], process_ids([*containers_of(leaving), *([request["container"]] if own else [])])
    )
    if taken:
        raise NodeTaskError(f"router: {taken}")
    return own


def _members(folder: Path) -> dict[str, Any]:
    rows = [row.split(",") for row in _ask(folder, "show stat").splitlines() if row]
    names = [name.strip("# ") for name in rows[0]]
    found = [dict(zip(names, row, strict=False)) for row in rows[1:]]
    return {
        row["svname"]: {
            "status": row["status"].split(" ")[0],
            "requests": int(row["scur"] or 0),
            "reason": row.get("last_chk") or row.get("check_status") or "",
        }
        for row in found
        if row["pxname"] == "members" and row["svname"] not in ("FRONTEND", "BACKEND")
    }


def _ask(folder: Path, command: str) -> str:
    """Returns what the router's socket answers."""
    answer = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            connection.connect(str(folder / _SOCKET))
            connection.sendall(f"{command}\n".encode())
            while chunk := connection.recv(65536):
                answer += chunk
    except OSError as error:
        raise NodeTaskError(f"the router does not answer at {folder / _SOCKET}: {error}") from None
    return answer.decode()


def _check(request: dict[str, Any], name: str) -> None:
    """Lets the router itself read the settings, without serving."""
    result = docker(
        *("run", "--rm", "--network", "none", "--volume", f"{request['folder']}:{request['seen_folder']}"),
        *("--entrypoint", request["program"], request["image"], "-c", "-f", f"{request['seen_folder']}/{name}"),
        check=False,
    )
    if result.returncode:
        raise NodeTaskError(f"the router refuses its settings: {result.stderr.strip()}")


def _reload(request: dict[str, Any], folder: Path) -> None:
    """Makes a running router take over its settings; members keep the state that they have."""
    before = _worker(folder)
    (folder / _STATES).write_text(states_to_keep(_ask(folder, "show servers state"), request["settings"]))
    docker("kill", "--signal", "USR2", request["container"])
    deadline = time.monotonic() + _RELOAD_SECONDS
    while time.monotonic() < deadline:
        try:
            if _worker(folder) != before:
                return
        except NodeTaskError:
            pass  # the socket changes hands
        time.sleep(_POLL_SECONDS)
    log = docker("logs", "--tail", "20", request["container"], check=False)
    raise NodeTaskError(f"the router did not take over its settings:\n{log.stdout}{log.stderr}")


def states_to_keep(states: str, settings: str) -> str:
    """Returns what is known of the members that stay where they are.

    A state brings its address with it, so that a member that has moved would be looked for at its old place.

    Args:
        states: what the router answers to `show servers state`.
        settings: the new ones.
    """
    version, names, *rows = [line for line in states.splitlines() if line]
    columns = names.lstrip("# ").split()
    name, address, port = (columns.index(key) for key in ("srv_name", "srv_addr", "srv_port"))
    kept = [row for row in rows if _is_at_home(row.split(), name, address, port, settings)]
    return "\n".join([version, names, *kept, ""])


def _is_at_home(row: list[str], name: int, address: int, port: int, settings: str) -> bool:
    return f"server {row[name]} {row[address]}:{row[port]} " in settings


def _worker(folder: Path) -> str:
    """Returns the process that serves now."""
    lines = dict(line.split(": ", 1) for line in _ask(folder, "show info").splitlines() if ": " in line)
    return lines["Pid"]


def _refuse_foreign(found: dict[str, Any] | None, request: dict[str, Any]) -> None:
    labels = (found["Config"].get("Labels") or {}) if found else {}
    if found and labels.get("gb10-serving.stack") != request["stack"]:
        raise NodeTaskError(
            f"a container named {request['container']} is on this node and was not made by stack {request['stack']}; "
            f"look at it with `docker inspect {request['container']}` and remove it yourself if it is not needed"
        )
