"""Tasks of the stack about the weights of a model."""

import sys
from typing import Any

from ops.errors import OperationError
from ops.remote import run_on_node
from ops.weights import Delivery, bring
from spec.connection import Connection
from spec.party import Party
from spec.release import WeightsPlan


def bring_weights(request: dict[str, Any]) -> Any:
    """Brings the weights of a model to all nodes of the deployment; nothing is done where receipts vouch for them.

    Args:
        request: `plan` (a WeightsPlan), `nodes` (a Party each).
    """
    plan = WeightsPlan.model_validate(request["plan"])
    parties = [Party.model_validate(node) for node in request["nodes"]]
    delivery = Delivery(plan, {party.node: party for party in parties})
    brought = bring(delivery, lambda text: print(text, file=sys.stderr, flush=True))
    return {"manifest": brought.manifest, "size_bytes": brought.size_bytes}


def read_receipt(request: dict[str, Any]) -> Any:
    """Reads the receipt of a node.

    Args:
        request: `connection`, `storage_folder`, and a plan's `receipt_request`.
    """
    found = run_on_node(
        Connection.model_validate(request["connection"]), request["storage_folder"], "weights-status", request
    )
    if not found["complete"]:
        node = request["connection"]["node"]
        raise OperationError(
            f"{node}: {request['folder']} is not complete: {found['why']}. `./fleet weights sync STACK` mends it"
        )
    return {"manifest": found["manifest"], "size_bytes": found["size_bytes"]}
