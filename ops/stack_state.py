"""What the backend says of a stack, and how stale things in it are cleared."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from ops.places import PROJECT
from ops.progress import Report
from ops.pulumi import read_pulumi


def known_stacks(variables: Mapping[str, str], project: Path = PROJECT) -> set[str]:
    """Returns the names of the project's stacks that the backend knows.

    Raises:
        OperationError: the backend cannot be used.
    """
    return {stack["name"] for stack in json.loads(read_pulumi(["stack", "ls", "--json"], variables, project))}


def ensure_stack(stack: str, variables: Mapping[str, str], project: Path = PROJECT) -> None:
    """Creates a stack that has a stack file and that the backend does not know yet.

    `pulumi preview --stack NAME` in a new checkout then shows what would be created, instead of asking for an
    initialisation first.

    Raises:
        OperationError: the backend cannot be used.
    """
    if (project / f"Pulumi.{stack}.yaml").is_file() and stack not in known_stacks(variables, project):
        read_pulumi(["stack", "init", stack, "--no-select"], variables, project)


def resources(
    stack: str, variables: Mapping[str, str], project: Path = PROJECT, *, show_secrets: bool = False
) -> list[dict[str, Any]]:
    """Returns the resources that a stack's state holds, none where the backend does not know the stack.

    Args:
        stack: its name.
        variables: the environment of the engine.
        project: where its stack file is.
        show_secrets: whether what the state holds encrypted is shown; it needs the stack's passphrase.

    Raises:
        OperationError: the backend cannot be used.
    """
    if stack not in known_stacks(variables, project):
        return []
    shown = ["--show-secrets"] if show_secrets else []
    state = json.loads(read_pulumi(["stack", "export", "--stack", stack, *shown], variables, project))
    return state["deployment"].get("resources") or []


def forget_stack(stack: str, variables: Mapping[str, str], project: Path = PROJECT) -> None:
    """Drops the state of a stack without touching anything that it describes; its stack file stays.

    Raises:
        OperationError: the backend cannot be used.
    """
    read_pulumi(["stack", "rm", stack, "--force", "--preserve-config", "--yes"], variables, project)


def release_dead_lock(stack_name: str, variables: Mapping[str, str], report: Report) -> None:
    """Removes the lock of a `pulumi` that was killed on this machine; the lock of a living one stays.

    Only a file backend keeps its locks as files; others are left to `pulumi cancel`.
    """
    backend = urlparse(variables.get("PULUMI_BACKEND_URL", os.environ.get("PULUMI_BACKEND_URL", "")))
    if backend.scheme != "file":
        return
    folder = Path(backend.path) / ".pulumi" / "locks" / "organization" / "gb10-serving" / stack_name
    for lock in folder.glob("*.json"):
        holder = json.loads(lock.read_text())
        if holder["hostname"] == os.uname().nodename and not Path(f"/proc/{holder['pid']}").exists():
            report(f"remove the lock that process {holder['pid']} left on stack {stack_name} when it was killed")
            lock.unlink()
