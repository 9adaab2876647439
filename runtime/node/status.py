"""All that is known on a node of one stack, read at once and changing nothing."""

from collections.abc import Callable
from typing import Any

from runtime.node import checks, claims, rank_folders, router, weights
from runtime.node.docker import inspect
from runtime.node.errors import NodeTaskError
from runtime.node.image.content import identity
from runtime.node.watch import report_rank

_SHOWN_LINES = 60


def status(request: dict[str, Any]) -> dict[str, Any]:
    """Returns what this node has of a stack.

    Args:
        request: `storage_folder`, `ranks` (each `container`, `address`, `port`), `image` (reference), `weights` (each
            what `weights.status` reads, and `name`), `router` (none, or `folder` and `container`).

    Returns:
        `memory` (`available_bytes`, `total_bytes`), `claim`, `image`, `weights` by name, `ranks` by container, and
        `router`. A part that could not be read is `{"unknown": why}`, which never means absent.
    """
    return {
        "memory": _read(_memory),
        "claim": _read(lambda: claims.holder(request)),
        "image": _read(lambda: identity({"reference": request["image"]})),
        "weights": {one["name"]: _read(lambda one=one: weights.status(one)) for one in request["weights"]},
        "ranks": {
            one["container"]: _read(lambda one=one: _rank({"storage_folder": request["storage_folder"], **one}))
            for one in request["ranks"]
        },
        "router": _read(lambda: router.members(request["router"])) if request["router"] else None,
    }


def _read(part: Callable[[], Any]) -> Any:
    try:
        return part()
    except (NodeTaskError, OSError, ValueError, KeyError) as error:
        return {"unknown": str(error) or repr(error)}


def _memory() -> dict[str, int]:
    return {
        "available_bytes": checks.meminfo_bytes("MemAvailable"),
        "total_bytes": checks.meminfo_bytes("MemTotal"),
    }


def _rank(request: dict[str, Any]) -> dict[str, Any]:
    """Returns what `report_rank` says, the supervisor's status of this moment, and what the container was made from."""
    report = report_rank(request)
    report["last_lines"] = report["last_lines"][-_SHOWN_LINES:]
    found = inspect("container", request["container"])
    if found is None:
        return {**report, "made_from": None, "silent": None}
    silent = None
    if report["state"] == "running":
        try:
            report["supervisor"] = rank_folders.ask(request)
        except NodeTaskError as error:
            silent = str(error)
    return {**report, "made_from": _made_from(found), "silent": silent}


def _made_from(container: dict[str, Any]) -> dict[str, Any]:
    """Returns what of a container the Release decides."""
    config, host = container["Config"], container["HostConfig"]
    named = inspect("image", config["Image"])
    return {
        "image": config["Image"],
        "image_is_named_so": bool(named) and named["Id"] == container["Image"],
        "command": [*(config.get("Entrypoint") or []), *(config.get("Cmd") or [])],
        "mounts": sorted([mount["Source"], mount["Destination"], mount["RW"]] for mount in container["Mounts"]),
        "network": host["NetworkMode"],
        "restart": host["RestartPolicy"]["Name"],
    }
