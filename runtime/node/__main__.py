"""`python3 -m runtime.node VERB`: reads one line of JSON from standard input and answers with one line of JSON.

What follows that line, if anything, is the verb's payload.
Progress and errors go to standard error. Exit codes: 0 done, 1 the verb says why not, 2 no such verb.
"""

import importlib
import json
import sys

from runtime.node.errors import NodeTaskError

VERBS = {
    "facts": "runtime.node.facts:facts",
    "image-identity": "runtime.node.image.content:identity",
    "image-pull": "runtime.node.image.content:pull",
    "image-verify": "runtime.node.image.verify:verify",
    "image-untag": "runtime.node.image.content:untag",
    "image-build": "runtime.node.image.build:build_from_standard_input",
    "image-missing": "runtime.node.image.missing:missing",
    "image-export": "runtime.node.image.export:export",
    "image-discard-export": "runtime.node.image.export:discard_export",
    "image-load": "runtime.node.image.load:load",
    "image-prune": "runtime.node.image.prune:prune",
    "make-cache": "runtime.node.image.content:make_cache",
    "weights-status": "runtime.node.weights:status",
    "weights-held": "runtime.node.weights:held_manifest",
    "weights-manifest": "runtime.node.weights:make_manifest",
    "weights-finish": "runtime.node.weights:finish",
    "weights-distrust": "runtime.node.weights:distrust",
    "weights-adopt": "runtime.node.weights_sources:adopt",
    "weights-download": "runtime.node.weights_sources:download",
    "weights-share": "runtime.node.weights_sources:share",
    "doctor": "runtime.doctor.examine:examine",
    "fabric-look": "runtime.fabric_check.look:look",
    "fabric-connect": "runtime.fabric_check.mesh:connect",
    "fabric-all-reduce": "runtime.fabric_check.collective:all_reduce",
    "preflight": "runtime.node.preflight:preflight",
    "claim": "runtime.node.claims:take",
    "release-claim": "runtime.node.claims:release",
    "look-at-claim": "runtime.node.claims:look",
    "clear-claim": "runtime.node.claims:clear",
    "prepare-rank": "runtime.node.rank_folders:prepare",
    "put-secrets": "runtime.node.rank_folders:put_secrets",
    "remove-rank-folder": "runtime.node.rank_folders:remove",
    "clear-parked": "runtime.node.rank_folders:clear_parked",
    "rank-status": "runtime.node.rank_folders:ask",
    "stop-rank": "runtime.node.ranks:stop",
    "start-rank": "runtime.node.ranks:start",
    "watch-rank": "runtime.node.watch:watch_rank",
    "report-rank": "runtime.node.watch:report_rank",
    "rail-bytes": "runtime.node.watch:rail_bytes",
    "probe": "runtime.node.probes:probe",
    "status": "runtime.node.status:status",
    "router-preflight": "runtime.node.router:preflight",
    "router-settings": "runtime.node.router:settle",
    "remove-router": "runtime.node.router:remove",
    "clear-router": "runtime.node.router:clear",
    "router-members": "runtime.node.router:members",
    "router-ready": "runtime.node.router:wait_for_members",
}
"""Module and function of each; only the module that is asked for is loaded, which halves the time of a short verb."""


def main() -> int:
    """Runs the verb named by the first argument and returns the exit code."""
    place = VERBS.get(sys.argv[1]) if len(sys.argv) == 2 else None
    if place is None:
        print(f"usage: python3 -m runtime.node {'|'.join(VERBS)}", file=sys.stderr)
        return 2
    module, _, function = place.partition(":")
    verb = getattr(importlib.import_module(module), function)
    request = json.loads(sys.stdin.buffer.readline())
    try:
        answer = verb(request)
    except NodeTaskError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(answer, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
