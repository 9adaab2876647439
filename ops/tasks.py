"""`python -m ops.tasks VERB`: what the stack's commands run on the controller, one JSON request on standard input.

Standard output carries one stable line of JSON, which is the resource's output; progress and the one readable error go
to standard error. Exit codes: 0 done, 1 not done and why, 2 no such verb.
"""

import importlib
import json
import sys

from ops.errors import OperationError

TASKS = {
    "node-facts": "ops.node_tasks:node_facts",
    "image-base": "ops.image_tasks:base",
    "image-step": "ops.image_tasks:step",
    "image-verify": "ops.image_tasks:verify",
    "image-share": "ops.image_tasks:share",
    "image-on-node": "ops.image_tasks:on_node",
    "weights": "ops.weights_tasks:bring_weights",
    "weights-receipt": "ops.weights_tasks:read_receipt",
    "preflight": "ops.node_tasks:preflight",
    "take-nodes": "ops.node_tasks:take_nodes",
    "free-nodes": "ops.node_tasks:free_nodes",
    "claim": "ops.node_tasks:claim",
    "release-claim": "ops.node_tasks:release_claim",
    "new-key": "ops.node_tasks:new_key",
    "put-secrets": "ops.node_tasks:put_secrets",
    "remove-rank-folder": "ops.node_tasks:remove_rank_folder",
    "ready": "ops.readiness:wait_until_ready",
    "keep-release": "ops.release_history:keep_release",
    "take-turn": "ops.turns:take_turn",
    "router-image": "ops.router_tasks:router_image",
    "router-settings": "ops.router_tasks:router_settings",
    "remove-router": "ops.router_tasks:remove_router",
    "router-ready": "ops.router_tasks:router_ready",
}
"""Module and function of each; a stack has dozens of tasks, so each loads only what it needs."""


def main() -> int:
    """Runs the task named by the first argument and returns the exit code."""
    place = TASKS.get(sys.argv[1]) if len(sys.argv) == 2 else None
    if place is None:
        print(f"usage: python -m ops.tasks {'|'.join(TASKS)}", file=sys.stderr)
        return 2
    module, _, function = place.partition(":")
    task = getattr(importlib.import_module(module), function)
    try:
        print(json.dumps(task(json.load(sys.stdin)), sort_keys=True))
    except OperationError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
