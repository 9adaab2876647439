"""The folder of a rank on its node: which runtime it runs, what it remembers, its secrets.

ranks/CONTAINER/code      link to the runtime that was there when the container was made
ranks/CONTAINER/record    what its supervisor remembers and shows (runtime/rank/record.py)
ranks/CONTAINER/secrets   for root alone
"""

import os
import shutil
from pathlib import Path
from typing import Any

from runtime.node.claims import note_generation
from runtime.node.docker import docker, inspect
from runtime.node.errors import NodeTaskError
from runtime.node.files import read_json, write_json
from runtime.node.image.content import identity
from runtime.rank.exchange import ExchangeError, ask_status, read_key

_RUNTIME = Path(__file__).resolve().parents[2]


def prepare(request: dict[str, Any]) -> dict[str, Any]:
    """Makes the node ready for a new container of this rank.

    Args:
        request: `storage_folder`, `container` (its name), `image` (reference), and what the claim on the node must say:
            `stack`, `group`, `generation`, `by`.

    Raises:
        NodeTaskError: a container of that name exists and is not this stack's, or another stack holds the node.
    """
    note_generation(request)
    _remove_leftover(request["container"], request["stack"])
    folder = _folder(request)
    shutil.rmtree(folder / "record", ignore_errors=True)
    (folder / "record").mkdir(parents=True)
    (folder / "secrets").mkdir(mode=0o700, exist_ok=True)
    write_json(folder / "record" / "image.json", identity({"reference": request["image"]}))
    link = folder / ".code"
    link.unlink(missing_ok=True)
    link.symlink_to(_RUNTIME)
    link.replace(folder / "code")
    return {"prepared": True}


def put_secrets(request: dict[str, Any]) -> dict[str, Any]:
    """Writes secrets beside a rank, readable for root alone; those that are no longer given go.

    Args:
        request: `storage_folder`, `container`, `secrets` (text by file name).
    """
    folder = _folder(request) / "secrets"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for stale in {path.name for path in folder.iterdir()} - set(request["secrets"]):
        (folder / stale).unlink()
    for name, text in request["secrets"].items():
        temporary = folder / f".{name}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        temporary.replace(folder / name)
    return {"kept": sorted(request["secrets"])}


def remove(request: dict[str, Any]) -> dict[str, Any]:
    """Removes the folder of a rank whose container has gone; one that is there still needs it."""
    if inspect("container", request["container"]) is not None:
        return {"removed": False}
    folder = _folder(request)
    shutil.rmtree(folder, ignore_errors=True)
    if folder.parent.is_dir() and not any(folder.parent.iterdir()):
        folder.parent.rmdir()
    return {"removed": True}


def clear_parked(request: dict[str, Any]) -> dict[str, Any]:
    """Lets a rank that is tripped or failed start again when its container does; it must not run meanwhile."""
    record = _folder(request) / "record"
    (record / "memory.json").unlink(missing_ok=True)
    (record / "status.json").unlink(missing_ok=True)
    return {"cleared": True}


def shown_status(request: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the status that a supervisor left when it last changed, none before it has.

    Args:
        request: `storage_folder`, `container`.
    """
    return read_json(_folder(request) / "record" / "status.json")


def ask(request: dict[str, Any]) -> dict[str, Any]:
    """Asks a rank's supervisor for its status, with the figures of this moment.

    Args:
        request: `storage_folder`, `container`, `address`, `port` (of its endpoint).

    Raises:
        NodeTaskError: it does not answer, which does not mean that it is down.
    """
    try:
        key = read_key(_folder(request) / "secrets" / "group-key")
        return ask_status(key, request["address"], request["port"], None, timeout_seconds=2.0)
    except (ExchangeError, OSError, ValueError) as error:
        raise NodeTaskError(f"the supervisor of {request['container']} cannot be asked: {error}") from None


def _remove_leftover(container: str, stack: str) -> None:
    found = inspect("container", container)
    if found is None:
        return
    labels = found["Config"].get("Labels") or {}
    if labels.get("gb10-serving.stack") != stack:
        raise NodeTaskError(
            f"a container named {container} is on this node and was not made by stack {stack}; "
            f"look at it with `docker inspect {container}` and remove it yourself if it is not needed"
        )
    docker("rm", "--force", container)


def _folder(request: dict[str, Any]) -> Path:
    return Path(request["storage_folder"]) / "ranks" / request["container"]
