"""Tasks of the stack about one node, or about the claims of several: each is a verb of runtime.node and its answer."""

import secrets
import sys
import time
from typing import Any

from ops import claims
from ops.remote import run_on_node
from spec.connection import Connection

_RANK_KEYS = ("storage_folder", "container")


def node_facts(request: dict[str, Any]) -> Any:
    """Reaches the node, puts the runtime on it and returns what it is."""
    return _on_node(request, "facts", {})


def preflight(request: dict[str, Any]) -> Any:
    """Checks that the node can run its rank; the time is added here, so that it is no part of the resource."""
    return _on_node(request, "preflight", {**request["checks"], "controller_seconds": time.time()})


def claim(request: dict[str, Any]) -> Any:
    """Takes the node for a stack and group."""
    _on_node(request, "claim", {**_claim_request(request), "by": claims.operator()})
    return {"stack": request["stack"], "group": request["group"]}


def take_nodes(request: dict[str, Any]) -> Any:
    """Takes all nodes of a group, or none.

    Args:
        request: `nodes` (each `connection`, `storage_folder`), `stack`, `group`.
    """
    claims.take_all(_holdings(request), request["stack"], request["group"])
    return {"nodes": sorted(node["connection"]["node"] for node in request["nodes"])}


def free_nodes(request: dict[str, Any]) -> Any:
    """Gives up whatever an interrupted `up` took and nobody stands for; says which nodes could not be asked."""
    claims.free_all(_holdings(request), request["stack"], request["group"], lambda text: print(text, file=sys.stderr))
    return {}


def release_claim(request: dict[str, Any]) -> Any:
    """Gives the node up."""
    return _on_node(request, "release-claim", _claim_request(request))


def new_key(_: dict[str, Any]) -> Any:
    """Makes the key with which the supervisors of a group sign; Pulumi keeps it encrypted."""
    return {"key": secrets.token_hex(32)}


def put_secrets(request: dict[str, Any]) -> Any:
    """Puts secrets beside a rank, over the node's standard input.

    Args:
        request: `connection`, `storage_folder`, `container`, `secrets` (text by file name).
    """
    return _on_node(request, "put-secrets", {key: request[key] for key in (*_RANK_KEYS, "secrets")})


def remove_rank_folder(request: dict[str, Any]) -> Any:
    """Removes what a rank leaves on its node: secrets and memory."""
    return _on_node(request, "remove-rank-folder", {key: request[key] for key in _RANK_KEYS})


def _connection(request: dict[str, Any]) -> Connection:
    return Connection.model_validate(request["connection"])


def _on_node(request: dict[str, Any], verb: str, asked: dict[str, Any]) -> dict[str, Any]:
    return run_on_node(_connection(request), request["storage_folder"], verb, asked)


def _claim_request(request: dict[str, Any]) -> dict[str, Any]:
    return {key: request[key] for key in ("storage_folder", "stack", "group")}


def _holdings(request: dict[str, Any]) -> list[claims.Holding]:
    return [claims.Holding(_connection(node), node["storage_folder"]) for node in request["nodes"]]
