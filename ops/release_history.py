"""The history of a stack's Releases: kept by a command of the stack, read from its state."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.errors import OperationError
from ops.places import PROJECT
from ops.stack_state import resources
from spec.history import History, HistoryError, ReadyRelease, pack, unpack, with_ready
from spec.release import Release
from spec.yaml_files import parse

_LAST_ANSWER = "PULUMI_COMMAND_STDOUT"
BEGUN, KEPT = "release-begun", "release-history"
"""Logical names of the two commands (components/release_history.py)."""


@dataclass(frozen=True)
class StackHistory:
    """What the state of a stack says.

    Attributes:
        stack: its name.
        begun: hash of the Release that the last `up` began to deploy; none before the first.
        ready: the Releases that were ready, newest first.
        parked: whether the last `up` parked the stack, and ended.
    """

    stack: str
    begun: str | None
    ready: History
    parked: bool = False

    @property
    def ended_ready(self) -> bool:
        """Whether the last `up` ended as it was meant: with groups that answered right, or parked."""
        return self.parked or (bool(self.ready) and self.ready[0].hash == self.begun)


def keep_release(request: dict[str, Any]) -> Any:
    """Puts a Release that is ready in front of the history that this command answered the last time.

    Args:
        request: `hash`, `release` (canonical JSON; none for a parked one, which is no Release to go back to), `kept`
            (how many stay).
    """
    last = os.environ.get(_LAST_ANSWER)
    history = _unpacked(json.loads(last)["history"]) if last else ()
    if request["release"] is None:
        return {"history": pack(history), "parked": request["hash"]}
    ready_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ready = ReadyRelease(hash=request["hash"], ready_at=ready_at, release=request["release"])
    return {"history": pack(with_ready(history, ready, request["kept"]))}


def read_history(stack: str, variables: Mapping[str, str], project: Path = PROJECT) -> StackHistory:
    """Reads the history from the stack's state; the stack may be unknown to the backend.

    Raises:
        OperationError: the backend cannot be used, or holds something else.
    """
    return history_in(stack, resources(stack, variables, project, show_secrets=True))


def history_in(stack: str, found: list[dict[str, Any]]) -> StackHistory:
    """Returns the history that resources of a state hold."""
    answers = {one["urn"].rsplit("::", 1)[-1]: one.get("outputs", {}).get("stdout") for one in found}
    begun, kept = answers.get(BEGUN), plain(answers.get(KEPT))
    answer = json.loads(kept) if kept else {}
    ready = _unpacked(answer["history"]) if answer else ()
    return StackHistory(stack, begun or None, ready, bool(begun) and answer.get("parked") == begun)


def plain(value: Any) -> Any:
    """Returns what an exported state shows of a value; a secret one is wrapped with its JSON text."""
    return json.loads(value["plaintext"]) if isinstance(value, dict) and "plaintext" in value else value


def read_release(ready: ReadyRelease, stack: str) -> Release:
    """Returns a kept Release as data of this program.

    Raises:
        SpecificationError: it was written by a version of this program that knew other keys.
    """
    shown = f"Release {ready.hash[:16]} of stack {stack}, ready at {ready.ready_at}"
    return parse(Release, json.loads(ready.release), shown)


def _unpacked(text: str) -> History:
    try:
        return unpack(text)
    except HistoryError as error:
        raise OperationError(str(error)) from None
