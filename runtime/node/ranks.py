"""Containers of ranks on this node."""

from typing import Any

from runtime.node.docker import docker, inspect


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
