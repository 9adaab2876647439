"""Asks the node's own Docker engine, through its command line."""

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from runtime.node.errors import NodeTaskError


def docker(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs `docker ARGUMENTS`; output as text.

    Raises:
        NodeTaskError: there is no docker, or it failed and `check` is set.
    """
    try:
        result = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NodeTaskError("this node has no docker command; install the Docker engine on it") from None
    if check and result.returncode:
        raise NodeTaskError(f"`docker {' '.join(arguments)}` failed: {result.stderr.strip()}")
    return result


def inspect(kind: str, name: str) -> dict[str, Any] | None:
    """Returns what Docker knows of an `image` or `container`, none where there is none.

    Raises:
        NodeTaskError: Docker could not be asked, which is not the same as absent.
    """
    result = docker(kind, "inspect", name, check=False)
    if result.returncode == 0:
        return json.loads(result.stdout)[0]
    if "no such" in result.stderr.lower():
        return None
    raise NodeTaskError(f"`docker {kind} inspect {name}` failed: {result.stderr.strip()}")


def containers_labelled(**labels: str) -> list[str]:
    """Returns the names of running containers that carry all these labels of ours."""
    filters = [word for key, value in labels.items() for word in ("--filter", f"label=gb10-serving.{key}={value}")]
    return docker("ps", "--format", "{{.Names}}", *filters).stdout.split()


def containers_of(stacks: Sequence[str]) -> list[str]:
    """Returns the names of all running containers of these stacks."""
    return [name for stack in stacks for name in containers_labelled(stack=stack)]
