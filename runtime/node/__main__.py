"""`python3 -m runtime.node VERB`: reads one line of JSON from standard input and answers with one line of JSON.

Progress and errors go to standard error. Exit codes: 0 done, 1 the verb says why not, 2 no such verb.
"""

import json
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from runtime.node import claims, facts, images, preflight, probes, ranks, watch, weights
from runtime.node.errors import NodeTaskError

Verb = Callable[[dict[str, Any], BinaryIO], Any]

VERBS: dict[str, Verb] = {
    "facts": lambda request, payload: facts.facts(),
    "image-identity": lambda request, payload: images.identity(request["reference"]),
    "weights-status": lambda request, payload: weights.status(request),
    "weights-receive": weights.receive,
    "preflight": lambda request, payload: preflight.preflight(request),
    "claim-holder": lambda request, payload: claims.holder(request["storage_folder"]),
    "claim": lambda request, payload: claims.take(request),
    "release-claim": lambda request, payload: claims.release(request),
    "remove-rank": lambda request, payload: ranks.remove_leftover(request),
    "watch-rank": lambda request, payload: watch.watch_rank(request),
    "rail-bytes": lambda request, payload: watch.rail_bytes(request["interfaces"]),
    "probe": lambda request, payload: probes.probe(request),
}


def main() -> int:
    """Runs the verb named by the first argument and returns the exit code."""
    verb = VERBS.get(sys.argv[1]) if len(sys.argv) == 2 else None
    if verb is None:
        print(f"usage: python3 -m runtime.node {'|'.join(VERBS)}", file=sys.stderr)
        return 2
    request = json.loads(sys.stdin.buffer.readline())
    try:
        answer = verb(request, sys.stdin.buffer)
    except NodeTaskError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(answer, sort_keys=True))
    return 0


sys.exit(main())
