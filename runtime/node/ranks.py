"""Containers of ranks on this node."""

from typing import Any

from runtime.node.docker import docker, inspect
from runtime.node.errors import NodeTaskError


def remove_leftover(request: dict[str, Any]) -> dict[str, Any]:
    """Removes a container of this name that an interrupted `up` left behind.

    Args:
        request: `container` (its name), `stack` (whose it must be).

    Raises:
        NodeTaskError: a container of that name exists and is not this stack's.
    """
    found = inspect("container", request["container"])
    if found is None:
        return {"removed": False}
    labels = found["Config"].get("Labels") or {}
    if labels.get("gb10-serving.stack") != request["stack"]:
        raise NodeTaskError(
            f"a container named {request['container']} is on this node and was not made by stack {request['stack']}; "
            f"look at it with `docker inspect {request['container']}` and remove it yourself if it is not needed"
        )
    docker("rm", "--force", request["container"])
    return {"removed": True}


def stop(request: dict[str, Any]) -> dict[str, Any]:
    """Stops the rank `container`, which has `grace_seconds` to end; one that has ended or is not there is no error."""
    if inspect("container", request["container"]) is None:
        return {"stopped": False}
    docker("stop", "--time", str(request["grace_seconds"]), request["container"])
    return {"stopped": True}


def start(request: dict[str, Any]) -> dict[str, Any]:
    """Starts the stopped rank `container` again; one that is not there yet is left to Pulumi."""
    if inspect("container", request["container"]) is None:
        return {"started": False}
    docker("start", request["container"])
    return {"started": True}


def process_ids(containers: list[str]) -> set[int]:
    """Returns the processes that run in these containers, as the node numbers them."""
    found: set[int] = set()
    for name in containers:
        rows = docker("top", name, "-eo", "pid", check=False).stdout.splitlines()[1:]
        found.update(int(row) for row in rows)
    return found
