"""What the backend says of a stack, through the Automation API, and how stale things in it are cleared."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from pulumi import automation

from ops.errors import OperationError
from ops.places import PROJECT
from ops.progress import Report


def known_stacks(variables: Mapping[str, str], project: Path = PROJECT) -> set[str]:
    """Returns the names of the project's stacks that the backend knows.

    Raises:
        OperationError: the backend cannot be used.
    """
    try:
        return {stack.name for stack in _workspace(variables, project).list_stacks()}
    except automation.CommandError as error:
        raise OperationError(f"the stacks of this project cannot be listed: {error}") from None


def resources(stack: str, variables: Mapping[str, str], project: Path = PROJECT) -> list[dict[str, Any]]:
    """Returns the resources that a stack's state holds, none where the backend does not know the stack."""
    if stack not in known_stacks(variables, project):
        return []
    deployment = _workspace(variables, project).export_stack(stack).deployment or {}
    return deployment.get("resources") or []


def forget_stack(stack: str, variables: Mapping[str, str], project: Path = PROJECT) -> None:
    """Drops the state of a stack without touching anything that it describes; its stack file stays."""
    _workspace(variables, project).remove_stack(stack, force=True, preserve_config=True)


def _workspace(variables: Mapping[str, str], project: Path) -> automation.LocalWorkspace:
    return automation.LocalWorkspace(work_dir=str(project), env_vars=dict(variables))


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
