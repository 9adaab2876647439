"""What Pulumi says that it would do, as plain data; needs no node."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ops.errors import OperationError
from ops.places import PROJECT
from spec.review import ResourceStep


def preview_steps(stack: str, variables: Mapping[str, str], project: Path = PROJECT) -> tuple[ResourceStep, ...]:
    """Runs `pulumi preview --json` and returns every resource that would be touched.

    Raises:
        OperationError: the preview failed; Pulumi's own words are in the text.
    """
    result = subprocess.run(
        ["pulumi", "preview", "--json", "--stack", stack, "--non-interactive"],
        cwd=project,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        told = json.loads(result.stdout)
    except ValueError:
        told = {}
    if result.returncode:
        words = [one["message"].strip() for one in told.get("diagnostics") or () if one["severity"] == "error"]
        raise OperationError(f"the preview of {stack} failed: {chr(10).join(words) or result.stderr.strip()}")
    return steps_of(told)


def steps_of(told: Mapping[str, Any]) -> tuple[ResourceStep, ...]:
    """Returns the steps of a preview's JSON, without what stays as it is."""
    return tuple(_step(step) for step in told.get("steps") or () if step["op"] not in ("same", "read"))


def _step(step: Mapping[str, Any]) -> ResourceStep:
    kinds, name = step["urn"].split("::")[2:]
    reasons = dict.fromkeys((*(step.get("replaceReasons") or ()), *(step.get("diffReasons") or ())))
    return ResourceStep(name=name, kind=kinds.rpartition("$")[2], operation=step["op"], because=tuple(reasons))
