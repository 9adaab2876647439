"""Gives an unreachable node up: takes what is on it out of a stack's state, so that the rest can go on without it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.errors import OperationError
from ops.places import PROJECT
from ops.pulumi import feed_pulumi, read_pulumi
from ops.remote import NodeError, run_on_node
from ops.stack_state import resources
from spec.connection import Connection

_CONTAINER = "docker:index/container:Container"


@dataclass(frozen=True)
class GivenUp:
    """What a stack no longer answers for.

    Attributes:
        node: its name.
        left: logical names of what lies there still, for all that is known.
        containers: names of its ranks' containers.
    """

    node: str
    left: tuple[str, ...]
    containers: tuple[str, ...]

    def __str__(self) -> str:
        there = ", ".join(self.containers) or "no container"
        return (
            f"{self.node}: given up. Left there, as far as is known: {there}, the claim, secrets and record of the rank"
        )


def nodes_in(found: Sequence[dict[str, Any]]) -> dict[str, tuple[Connection, str]]:
    """Returns the nodes that a state's commands reach, with our folder on each, by name."""
    requests = [request for one in found if (request := request_of(one)) and "connection" in request]
    return {
        request["connection"]["node"]: (Connection.model_validate(request["connection"]), request["storage_folder"])
        for request in requests
    }


def machines_in(found: Sequence[dict[str, Any]]) -> frozenset[str]:
    """Returns the machines that a state's claims hold, as ADDRESS:PORT."""
    requests = [request_of(one) for one in found if _is_task(one, "claim")]
    return frozenset(f"{one['connection']['address']}:{one['connection']['port']}" for one in requests if one)


def holds_nodes(found: Sequence[dict[str, Any]]) -> bool:
    """Whether a state has ranks or claims of nodes."""
    return any(one["type"] == _CONTAINER or _is_task(one, "take-nodes") or _is_task(one, "claim") for one in found)


def why_unreachable(connection: Connection, storage_folder: str) -> str | None:
    """Returns why a node cannot be asked, none if it can."""
    try:
        run_on_node(connection, storage_folder, "facts", {}, timeout_seconds=20)
    except NodeError as error:
        return str(error)
    return None


def give_up(stack: str, nodes: Sequence[str], variables: Mapping[str, str], project: Path = PROJECT) -> list[GivenUp]:
    """Takes what could only be deleted on these nodes out of a stack's state; the nodes are not contacted.

    Raises:
        OperationError: the stack has no such node, or the backend cannot be used.
    """
    found = resources(stack, variables, project, show_secrets=True)
    known = nodes_in(found)
    if unknown := [node for node in nodes if node not in known]:
        has = ", ".join(known) or "no node"
        raise OperationError(f"{', '.join(unknown)}: not in the state of {stack}, which has {has}")
    gone = {node: [one for one in found if _must_be_deleted_on(one, node)] for node in nodes}
    state = json.loads(read_pulumi(["stack", "export", "--stack", stack], variables, project))
    without(state["deployment"], {one["urn"] for ones in gone.values() for one in ones}, set(nodes))
    feed_pulumi(["stack", "import", "--stack", stack], json.dumps(state), variables, project)
    return [_given_up(node, ones) for node, ones in gone.items()]


def without(deployment: dict[str, Any], urns: set[str], nodes: set[str]) -> None:
    """Removes resources and every mention of them from an exported state, and nodes from what frees whole groups."""
    deployment["resources"] = [one for one in deployment.get("resources") or [] if one["urn"] not in urns]
    deployment["pending_operations"] = [
        one for one in deployment.get("pending_operations") or [] if one["resource"]["urn"] not in urns
    ]
    for one in deployment["resources"]:
        one["dependencies"] = [urn for urn in one.get("dependencies") or [] if urn not in urns]
        for key, found in (one.get("propertyDependencies") or {}).items():
            one["propertyDependencies"][key] = [urn for urn in found or [] if urn not in urns]
        if _is_task(one, "take-nodes"):
            _leave_nodes_out(one, nodes)


def request_of(resource: dict[str, Any]) -> dict[str, Any] | None:
    """Returns what a command of ours is asked, none for anything else or where it is encrypted."""
    inputs = resource.get("inputs") or {}
    if "ops.tasks " not in str(inputs.get("create", "")):
        return None
    text = inputs.get("stdin")
    if isinstance(text, dict):
        text = json.loads(text["plaintext"]) if "plaintext" in text else None
    return json.loads(text) if text else None


def _leave_nodes_out(resource: dict[str, Any], nodes: set[str]) -> None:
    for place in ("inputs", "outputs"):
        if text := (resource.get(place) or {}).get("stdin"):
            request = json.loads(text)
            kept = [node for node in request["nodes"] if node["connection"]["node"] not in nodes]
            resource[place]["stdin"] = json.dumps({**request, "nodes": kept}, sort_keys=True, separators=(",", ":"))


def _must_be_deleted_on(resource: dict[str, Any], node: str) -> bool:
    if resource["type"] == _CONTAINER:
        return f"::{node}-docker::" in f"{resource.get('provider', '')}"
    request = request_of(resource) if (resource.get("inputs") or {}).get("delete") else None
    return bool(request) and (request or {}).get("connection", {}).get("node") == node


def _given_up(node: str, ones: list[dict[str, Any]]) -> GivenUp:
    containers = tuple(str(one["inputs"]["name"]) for one in ones if one["type"] == _CONTAINER)
    return GivenUp(node, tuple(one["urn"].rsplit("::", 1)[-1] for one in ones), containers)


def _is_task(resource: dict[str, Any], verb: str) -> bool:
    return str((resource.get("inputs") or {}).get("create", "")).endswith(f"ops.tasks {verb}")
