"""A node's claim: which stack it serves. On disk, so that it survives a reboot."""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from runtime.node.errors import NodeTaskError
from runtime.node.files import read_json, write_json


def holder(request: dict[str, Any]) -> dict[str, Any] | None:
    """Returns who holds the node of `storage_folder` (`stack`, `group`, `since`), none when it is free."""
    return read_json(_path(request["storage_folder"]))


def take(request: dict[str, Any]) -> dict[str, Any]:
    """Takes the node for `stack` and `group`; taking it again is no change.

    Args:
        request: `storage_folder`, `stack`, `group`.

    Raises:
        NodeTaskError: another stack holds it.
    """
    path = _path(request["storage_folder"])
    claim = {
        "stack": request["stack"],
        "group": request["group"],
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if not _create(path, claim):
        refuse_other_stack(request)
        if (holder(request) or {}).get("group") != request["group"]:
            write_json(path, claim)
    return {"stack": request["stack"], "group": request["group"]}


def release(request: dict[str, Any]) -> dict[str, Any]:
    """Gives the node up if `stack` and `group` hold it; anybody else's claim stays."""
    path = _path(request["storage_folder"])
    found = holder(request)
    held = bool(found) and (found["stack"], found["group"]) == (request["stack"], request["group"])
    if held:
        path.unlink()
    return {"released": held}


def refuse_other_stack(request: dict[str, Any]) -> None:
    """Raises NodeTaskError if a stack other than `stack` holds the node of `storage_folder`."""
    found = holder(request)
    if found and found["stack"] != request["stack"]:
        raise NodeTaskError(
            f"this node serves stack {found['stack']}, group {found['group']}, since {found['since']}: a node belongs "
            f"to one deployment. Way out: `pulumi destroy --stack {found['stack']}` first, or choose other nodes"
        )


def _path(storage_folder: str) -> Path:
    return Path(storage_folder) / "claim.json"


def _create(path: Path, claim: dict[str, Any]) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    with os.fdopen(descriptor, "w") as file:
        json.dump(claim, file, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True
