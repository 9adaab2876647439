"""Runs the `pulumi` command line in this checkout."""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ops.errors import OperationError
from ops.places import PROJECT

_NEEDS_STACK = ("preview", "up", "refresh", "destroy")


def run_pulumi(arguments: Sequence[str], variables: Mapping[str, str], project: Path = PROJECT) -> int:
    """Runs `pulumi ARGUMENTS` with our variables and returns its exit code."""
    return subprocess.run(["pulumi", *arguments], cwd=project, env={**os.environ, **variables}, check=False).returncode


def follow_pulumi(
    arguments: Sequence[str], variables: Mapping[str, str], tell: Callable[[str], None], project: Path = PROJECT
) -> int:
    """Runs `pulumi ARGUMENTS`, hands on each line that it prints, and returns its exit code."""
    process = subprocess.Popen(
        ["pulumi", *arguments, "--non-interactive"],
        cwd=project,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for line in process.stdout or ():
        tell(line.rstrip())
    return process.wait()


def feed_pulumi(arguments: Sequence[str], text: str, variables: Mapping[str, str], project: Path = PROJECT) -> None:
    """Runs `pulumi ARGUMENTS` with a text on its standard input.

    Raises:
        OperationError: it failed; its own words are in the text.
    """
    _run(arguments, variables, project, text)


def read_pulumi(arguments: Sequence[str], variables: Mapping[str, str], project: Path = PROJECT) -> str:
    """Runs `pulumi ARGUMENTS` and returns what it printed.

    Raises:
        OperationError: it failed; its own words are in the text.
    """
    return _run(arguments, variables, project, None)


def _run(arguments: Sequence[str], variables: Mapping[str, str], project: Path, given: str | None) -> str:
    result = subprocess.run(
        ["pulumi", *arguments, "--non-interactive"],
        cwd=project,
        env={**os.environ, **variables},
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise OperationError(f"`pulumi {' '.join(arguments)}` failed: {result.stderr.strip()}")
    return result.stdout


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
