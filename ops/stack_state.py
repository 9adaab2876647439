"""What the backend says of a stack, and how stale things in it are cleared."""

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from ops.errors import OperationError
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


def await_lock(stack_name: str, variables: Mapping[str, str], report: Report) -> None:
    """Waits until no other `pulumi` of this machine changes a stack, and clears the lock of one that was killed.

    Raises:
        OperationError: another one was not done within ten minutes.
    """
    end = time.monotonic() + _LOCK_PATIENCE_SECONDS
    told = False
    while True:
        release_dead_lock(stack_name, variables, report)
        holders = [holder for _, holder in _locks(stack_name, variables)]
        if not holders:
            return
        if time.monotonic() > end:
            raise OperationError(
                f"stack {stack_name} is locked by process {holders[0]['pid']} on {holders[0]['hostname']}: end it, or "
                f"`./fleet pulumi cancel --stack {stack_name}` if it is gone"
            )
        if not told:
            report(f"stack {stack_name} is being changed by process {holders[0]['pid']}; wait for it")
            told = True
        time.sleep(1)


def release_dead_lock(stack_name: str, variables: Mapping[str, str], report: Report) -> None:
    """Removes the lock of a `pulumi` that was killed on this machine; the lock of a living one stays.

    Only a file backend keeps its locks as files; others are left to `pulumi cancel`.
    """
    for lock, holder in _locks(stack_name, variables):
        if holder["hostname"] == os.uname().nodename and not Path(f"/proc/{holder['pid']}").exists():
            report(f"remove the lock that process {holder['pid']} left on stack {stack_name} when it was killed")
            lock.unlink()


def _locks(stack_name: str, variables: Mapping[str, str]) -> list[tuple[Path, dict[str, Any]]]:
    backend = urlparse(variables.get("PULUMI_BACKEND_URL", os.environ.get("PULUMI_BACKEND_URL", "")))
    if backend.scheme != "file":
        return []
    folder = Path(backend.path) / ".pulumi" / "locks" / "organization" / "gb10-serving" / stack_name
    found = []
    for lock in folder.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):  # its holder has just ended
            found.append((lock, json.loads(lock.read_text())))
    return found


_LOCK_PATIENCE_SECONDS = 600
