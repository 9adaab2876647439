"""`python -m ops.tasks VERB`: what the stack's commands run on the controller, one JSON request on standard input.

Standard output carries one stable line of JSON, which is the resource's output; progress and the one readable error go
to standard error. Exit codes: 0 done, 1 not done and why, 2 no such verb.
"""

import json
import secrets
import sys
import time
from collections.abc import Callable
from typing import Any

from ops import claims, image_tasks
from ops.errors import OperationError
from ops.readiness import wait_until_ready
from ops.release_history import keep_release
from ops.remote import run_on_node
from ops.router_tasks import remove_router, router_image, router_ready, router_settings
from ops.turns import take_turn
from ops.weights import Delivery, bring
from spec.connection import Connection
from spec.party import Party
from spec.release import WeightsPlan

_RANK_KEYS = ("storage_folder", "container")


def node_facts(request: dict[str, Any]) -> Any:
    """Reaches the node, puts the runtime on it and returns what it is."""
    return _on_node(request, "facts", {})


def weights(request: dict[str, Any]) -> Any:
    """Brings the weights of a model to all nodes of the deployment; nothing is done where receipts vouch for them.

    Args:
        request: `plan` (a WeightsPlan), `nodes` (a Party each).
    """
    plan = WeightsPlan.model_validate(request["plan"])
    parties = [Party.model_validate(node) for node in request["nodes"]]
    delivery = Delivery(plan, {party.node: party for party in parties})
    brought = bring(delivery, lambda text: print(text, file=sys.stderr, flush=True))
    return {"manifest": brought.manifest, "size_bytes": brought.size_bytes}


def weights_receipt(request: dict[str, Any]) -> Any:
    """Reads the receipt of a node.

    Args:
        request: `connection`, `storage_folder`, and a plan's `receipt_request`.
    """
    found = _on_node(request, "weights-status", request)
    if not found["complete"]:
        node = request["connection"]["node"]
        raise OperationError(
            f"{node}: {request['folder']} is not complete: {found['why']}. `./fleet weights sync STACK` mends it"
        )
    return {"manifest": found["manifest"], "size_bytes": found["size_bytes"]}


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


def ready(request: dict[str, Any]) -> Any:
    """Waits until the group answered right, or says which rank ended with which words."""
    return wait_until_ready(request)


TASKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "node-facts": node_facts,
    "image-base": image_tasks.base,
    "image-step": image_tasks.step,
    "image-verify": image_tasks.verify,
    "image-share": image_tasks.share,
    "image-on-node": image_tasks.on_node,
    "weights": weights,
    "weights-receipt": weights_receipt,
    "preflight": preflight,
    "take-nodes": take_nodes,
    "free-nodes": free_nodes,
    "claim": claim,
    "release-claim": release_claim,
    "new-key": new_key,
    "put-secrets": put_secrets,
    "remove-rank-folder": remove_rank_folder,
    "ready": ready,
    "keep-release": keep_release,
    "take-turn": take_turn,
    "router-image": router_image,
    "router-settings": router_settings,
    "remove-router": remove_router,
    "router-ready": router_ready,
}


def main() -> int:
    """Runs the task named by the first argument and returns the exit code."""
    task = TASKS.get(sys.argv[1]) if len(sys.argv) == 2 else None
    if task is None:
        print(f"usage: python -m ops.tasks {'|'.join(TASKS)}", file=sys.stderr)
        return 2
    try:
        print(json.dumps(task(json.load(sys.stdin)), sort_keys=True))
    except OperationError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _connection(request: dict[str, Any]) -> Connection:
    return Connection.model_validate(request["connection"])


def _on_node(
    request: dict[str, Any],
    verb: str,
    asked: dict[str, Any],
    seconds: int = 120,
) -> dict[str, Any]:
    return run_on_node(_connection(request), request["storage_folder"], verb, asked, timeout_seconds=seconds)


def _claim_request(request: dict[str, Any]) -> dict[str, Any]:
    return {key: request[key] for key in ("storage_folder", "stack", "group")}


def _holdings(request: dict[str, Any]) -> list[claims.Holding]:
    return [claims.Holding(_connection(node), node["storage_folder"]) for node in request["nodes"]]


if __name__ == "__main__":
    sys.exit(main())
