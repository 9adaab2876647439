"""Runs the `pulumi` command line in this checkout."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ops.places import PROJECT

_NEEDS_STACK = ("preview", "up", "refresh", "destroy")


def run_pulumi(arguments: Sequence[str], variables: Mapping[str, str], project: Path = PROJECT) -> int:
    """Runs `pulumi ARGUMENTS` with our variables and returns its exit code."""
    return subprocess.run(["pulumi", *arguments], cwd=project, env={**os.environ, **variables}, check=False).returncode


def ensure_stack(arguments: Sequence[str], variables: Mapping[str, str], project: Path = PROJECT) -> None:
    """Creates the stack that the arguments name if it has a stack file and the backend does not know it yet.

    `pulumi preview --stack NAME` in a new checkout then shows what would be created, instead of asking for an
    initialisation first.
    """
    stack = named_stack(arguments)
    if stack is None or not (project / f"Pulumi.{stack}.yaml").is_file():
        return
    environment = {**os.environ, **variables}
    known = subprocess.run(
        ["pulumi", "stack", "ls", "--json"], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    if known.returncode == 0 and f'"name": "{stack}"' not in known.stdout:
        subprocess.run(
            ["pulumi", "stack", "init", stack, "--no-select", "--non-interactive"],
            cwd=project,
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )


def named_stack(arguments: Sequence[str]) -> str | None:
    """Returns the stack that a preview, up, refresh or destroy names, none for anything else."""
    if not arguments or arguments[0] not in _NEEDS_STACK:
        return None
    for position, word in enumerate(arguments):
        if word in ("--stack", "-s") and position + 1 < len(arguments):
            return arguments[position + 1]
        if word.startswith("--stack="):
            return word.removeprefix("--stack=")
    return None
