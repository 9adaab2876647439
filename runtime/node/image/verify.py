"""Verifies an image from inside, in a container that sees nothing but the checks."""

import json
import subprocess
from pathlib import Path
from typing import Any

from runtime.node.errors import NodeTaskError

_LIMIT_SECONDS = 600


def verify(request: dict[str, Any]) -> dict[str, Any]:
    """Runs the verification of runtime/build/ in an image.

    Args:
        request: `reference`, `checks` (what runtime/build/verify.py reads).

    Returns:
        Its report: `ok`, `packages`, `checks`.

    Raises:
        NodeTaskError: the image cannot be started or has no Python.
    """
    command = [
        *("docker", "run", "--rm", "--interactive", "--network", "none", "--volume", f"{Path.cwd()}:/gb10-serving:ro"),
        *("--workdir", "/gb10-serving", "--entrypoint", "python3", request["reference"]),
        *("-B", "-m", "runtime.build", "verify", "-"),
    ]
    result = subprocess.run(
        command,
        input=json.dumps(request["checks"]),
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_SECONDS,
    )
    try:
        return json.loads(result.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise NodeTaskError(f"{request['reference']} could not be verified: {result.stderr.strip()}") from None
