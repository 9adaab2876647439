"""`python -m ops.tasks VERB`: what the stack's commands run on the controller, one JSON request on standard input.

Standard output carries one stable line of JSON, which is the resource's output; progress and the one readable error go
to standard error. Exit codes: 0 done, 1 not done and why, 2 no such verb.
"""

import json
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ops import image_tasks
from ops.errors import OperationError
from ops.places import cache_folder
from ops.readiness import wait_until_ready
from ops.release_history import keep_release
from ops.remote import run_on_node
from runtime.common.weights_manifest import manifest_hash, manifest_of
from spec.connection import Connection

_LONG_SECONDS = 4 * 3600
_LAB_HINT = "For the virtual fabric `./fleet lab up` makes it"


def node_facts(request: dict[str, Any]) -> Any:
    """Reaches the node, puts the runtime on it and returns what it is."""
    return _on_node(request, "facts", {})


def weights(request: dict[str, Any]) -> Any:
    """Copies the weights to the node unless its receipt vouches for the same revision and content.

    Args:
        request: `connection`, `storage_folder`, `source` (folder below our cache folder), `repository` (where they are
            published, if they are), `folder`, `revision`.
    """
    source = cache_folder() / request["source"]
    if not source.is_dir():
        raise OperationError(
            f"the weights are not on this controller: {source} does not exist. {_weights_hint(request)}"
        )
    manifest = manifest_of(source)
    wanted = {"complete": True, "manifest": manifest_hash(manifest), "why": None}
    asked = {"folder": request["folder"], "revision": request["revision"]}
    if _on_node(request, "weights-status", asked) != wanted:
        _progress(request, f"sending {len(manifest)} files to {request['folder']}")
        _on_node(
            request,
            "weights-receive",
            {**asked, "manifest": manifest},
            payload=tar_stream(source),
            seconds=_LONG_SECONDS,
        )
    return {"manifest": wanted["manifest"]}


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
    "image-base": image_tasks.base,
    "image-step": image_tasks.step,
    "image-verify": image_tasks.verify,
    "image-share": image_tasks.share,
    "image-on-node": image_tasks.on_node,
    "weights": weights,
    "preflight": preflight,
    "claim": claim,
    "release-claim": release_claim,
    "ready": ready,
    "keep-release": keep_release,
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


def _weights_hint(request: dict[str, Any]) -> str:
    if request["repository"] is None:
        return _LAB_HINT
    folder = cache_folder() / request["source"]
    return f"Fetch them: `hf download {request['repository']} --revision {request['revision']} --local-dir {folder}`"


def _connection(request: dict[str, Any]) -> Connection:
    return Connection.model_validate(request["connection"])


def _on_node(
    request: dict[str, Any],
    verb: str,
    asked: dict[str, Any],
    payload: Iterator[bytes] | tuple[()] = (),
    seconds: int = 120,
) -> dict[str, Any]:
    return run_on_node(_connection(request), request["storage_folder"], verb, asked, payload, seconds)


def _claim_request(request: dict[str, Any]) -> dict[str, Any]:
    return {key: request[key] for key in ("storage_folder", "stack", "group")}


def _progress(request: dict[str, Any], text: str) -> None:
    print(f"{request['connection']['node']}: {text}", file=sys.stderr, flush=True)


def tar_stream(folder: Path) -> Iterator[bytes]:
    """Yields the folder as a tar, without holding more than one chunk of a file in memory."""
    chunk_bytes = 1 << 20
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        member = tarfile.TarInfo(path.relative_to(folder).as_posix())
        member.size = path.stat().st_size
        yield member.tobuf(format=tarfile.PAX_FORMAT)
        with path.open("rb") as file:
            while chunk := file.read(chunk_bytes):
                yield chunk
        yield bytes(-member.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


if __name__ == "__main__":
    sys.exit(main())
