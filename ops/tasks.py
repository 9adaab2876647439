"""`python -m ops.tasks VERB`: what the stack's commands run on the controller, one JSON request on standard input.

Standard output carries one stable line of JSON, which is the resource's output; progress and the one readable error go
to standard error. Exit codes: 0 done, 1 not done and why, 2 no such verb.
"""

import json
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ops.errors import OperationError
from ops.places import cache_folder
from ops.readiness import wait_until_ready
from ops.remote import run_on_node, stream_to_node
from ops.transfers import Party
from ops.weights import Delivery, bring
from runtime.common.image_identity import image_identity
from spec.connection import Connection
from spec.release import WeightsPlan

_LONG_SECONDS = 4 * 3600
_LAB_HINT = "For the virtual fabric `./fleet lab up` makes it"


def node_facts(request: dict[str, Any]) -> Any:
    """Reaches the node, puts the runtime on it and returns what it is."""
    return _on_node(request, "facts", {})


def send_image(request: dict[str, Any]) -> Any:
    """Brings an image that is made here to the node unless an image of the same content is there.

    Args:
        request: `connection`, `storage_folder`, `reference`, `archive` (a `docker save` file below our cache folder),
            `cache_folder` (on the node, for what the engine compiles).
    """
    archive = cache_folder() / request["archive"]
    if not archive.is_file():
        raise OperationError(f"{request['reference']} is not on this controller: {archive} does not exist. {_LAB_HINT}")
    wanted = archive_identity(archive)
    asked = {"reference": request["reference"]}
    if _on_node(request, "image-identity", asked) != wanted:
        _progress(request, f"sending {request['reference']}, {archive.stat().st_size >> 20} MiB")
        stream_to_node(_connection(request), "docker load --quiet", archive, _LONG_SECONDS)
        found = _on_node(request, "image-identity", asked)
        if found != wanted:
            raise OperationError(
                f"{request['connection']['node']} loaded {request['reference']} and holds {found['identity']}, sent "
                f"was {wanted['identity']}: its image store is damaged, look at `docker image inspect` there"
            )
    _on_node(request, "make-cache", {"cache_folder": request["cache_folder"]})
    return wanted


def pull_image(request: dict[str, Any]) -> Any:
    """Has the node pull a published image by digest.

    Args:
        request: `connection`, `storage_folder`, `reference`, `pull`, `cache_folder` (on the node).
    """
    asked = {"reference": request["reference"], "pull": request["pull"]}
    found = _on_node(request, "image-pull", asked, seconds=_LONG_SECONDS)
    _on_node(request, "make-cache", {"cache_folder": request["cache_folder"]})
    return found


def archive_identity(archive: Path) -> dict[str, Any]:
    """Returns identity and layers of the image in a `docker save` file."""
    with tarfile.open(archive) as tar:
        manifest = _read_member(tar, "manifest.json")
        config = _read_member(tar, manifest[0]["Config"])
    layers = config["rootfs"]["diff_ids"]
    return {"identity": image_identity(layers, config.get("config") or {}, config["architecture"]), "layers": layers}


def weights(request: dict[str, Any]) -> Any:
    """Brings the weights of a model to all nodes of the deployment; nothing is done where receipts vouch for them.

    Args:
        request: `plan` (a WeightsPlan), `storage_folder`, `nodes` (each `connection`, `address`, `switch`).
    """
    plan = WeightsPlan.model_validate(request["plan"])
    storage = request["storage_folder"]
    connections = [Connection.model_validate(node["connection"]) for node in request["nodes"]]
    parties = {
        connection.node: Party(connection.node, connection, storage, node["address"], node["switch"])
        for connection, node in zip(connections, request["nodes"], strict=True)
    }
    brought = bring(Delivery(plan, storage, parties), lambda text: print(text, file=sys.stderr, flush=True))
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
    return _on_node(request, "claim", _claim_request(request))


def release_claim(request: dict[str, Any]) -> Any:
    """Gives the node up."""
    return _on_node(request, "release-claim", _claim_request(request))


def ready(request: dict[str, Any]) -> Any:
    """Waits until the group answered right, or says which rank ended with which words."""
    return wait_until_ready(request)


TASKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "node-facts": node_facts,
    "send-image": send_image,
    "pull-image": pull_image,
    "weights": weights,
    "weights-receipt": weights_receipt,
    "preflight": preflight,
    "claim": claim,
    "release-claim": release_claim,
    "ready": ready,
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


def _progress(request: dict[str, Any], text: str) -> None:
    print(f"{request['connection']['node']}: {text}", file=sys.stderr, flush=True)


def _read_member(tar: tarfile.TarFile, name: str) -> Any:
    member = tar.extractfile(name)
    assert member is not None
    return json.load(member)


if __name__ == "__main__":
    sys.exit(main())
