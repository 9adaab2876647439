"""`python3 -m runtime.node VERB`: reads one line of JSON from standard input and answers with one line of JSON.

What follows that line, if anything, is the verb's payload.
Progress and errors go to standard error. Exit codes: 0 done, 1 the verb says why not, 2 no such verb.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from runtime.doctor.examine import examine
from runtime.fabric_check import collective, look, mesh
from runtime.node import (
    claims,
    facts,
    preflight,
    probes,
    rank_folders,
    ranks,
    router,
    status,
    watch,
    weights,
    weights_sources,
)
from runtime.node.errors import NodeTaskError
from runtime.node.image import build, content, export, load, missing, prune, verify

VERBS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "facts": facts.facts,
    "image-identity": content.identity,
    "image-pull": content.pull,
    "image-verify": verify.verify,
    "image-untag": content.untag,
    "image-build": lambda request: build.build(request, sys.stdin.buffer),
    "image-missing": missing.missing,
    "image-export": export.export,
    "image-discard-export": export.discard_export,
    "image-load": load.load,
    "image-prune": prune.prune,
    "make-cache": content.make_cache,
    "weights-status": weights.status,
    "weights-held": weights.held_manifest,
    "weights-manifest": weights.make_manifest,
    "weights-finish": weights.finish,
    "weights-distrust": weights.distrust,
    "weights-adopt": weights_sources.adopt,
    "weights-download": weights_sources.download,
    "weights-share": weights_sources.share,
    "doctor": examine,
    "fabric-look": look.look,
    "fabric-connect": mesh.connect,
    "fabric-all-reduce": collective.all_reduce,
    "preflight": preflight.preflight,
    "claim": claims.take,
    "release-claim": claims.release,
    "look-at-claim": claims.look,
    "clear-claim": claims.clear,
    "prepare-rank": rank_folders.prepare,
    "put-secrets": rank_folders.put_secrets,
    "remove-rank-folder": rank_folders.remove,
    "clear-parked": rank_folders.clear_parked,
    "rank-status": rank_folders.ask,
    "stop-rank": ranks.stop,
    "start-rank": ranks.start,
    "watch-rank": watch.watch_rank,
    "report-rank": watch.report_rank,
    "rail-bytes": watch.rail_bytes,
    "probe": probes.probe,
    "status": status.status,
    "router-settings": router.settle,
    "remove-router": router.remove,
    "clear-router": router.clear,
    "router-members": router.members,
    "router-ready": router.wait_for_members,
}


def main() -> int:
    """Runs the verb named by the first argument and returns the exit code."""
    verb = VERBS.get(sys.argv[1]) if len(sys.argv) == 2 else None
    if verb is None:
        print(f"usage: python3 -m runtime.node {'|'.join(VERBS)}", file=sys.stderr)
        return 2
    request = json.loads(sys.stdin.buffer.readline())
    try:
        answer = verb(request)
    except NodeTaskError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(answer, sort_keys=True))
    return 0


sys.exit(main())
