"""What a rank must remember through a restart of its container: small files in a folder of the node."""

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runtime.rank.status import Cause


@dataclass(frozen=True)
class Parked:
    """Why a rank stays down until `pulumi up`.

    Attributes:
        state: `tripped` or `failed`.
        cause: the first one.
    """

    state: str
    cause: Cause


@dataclass(frozen=True)
class Memory:
    """All that is remembered.

    Attributes:
        parked: none while the rank may run.
        served: whether this group has served since it was deployed.
        stops: what ended the group lately, the oldest first.
    """

    parked: Parked | None = None
    served: bool = False
    stops: tuple[Cause, ...] = ()

    @staticmethod
    def from_plain(data: Mapping[str, Any]) -> "Memory":
        """Reads what `Record.write` wrote."""
        parked = data["parked"]
        return Memory(
            Parked(parked["state"], Cause(**parked["cause"])) if parked else None,
            data["served"],
            tuple(Cause(**stop) for stop in data["stops"]),
        )


class AnotherSupervisorError(Exception):
    """Raised when another supervisor has this rank's record open."""


class Record:
    """The record of one rank, held by one supervisor at a time."""

    def __init__(self, folder: Path) -> None:
        """Takes the record.

        Raises:
            AnotherSupervisorError: another supervisor holds it.
            OSError: the folder is not there.
        """
        self._folder = folder
        self._lock = (folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AnotherSupervisorError(
                f"another supervisor holds {folder}: two containers of this rank run on this node"
            ) from None

    def read(self) -> Memory:
        """Returns what is remembered, nothing at first."""
        try:
            return Memory.from_plain(json.loads((self._folder / "memory.json").read_text()))
        except FileNotFoundError:
            return Memory()

    def write(self, memory: Memory) -> None:
        """Remembers, also through a power cut."""
        self._replace("memory.json", asdict(memory), durable=True)

    def show(self, status: Mapping[str, Any]) -> None:
        """Leaves the status where the node can read it without asking over the network."""
        self._replace("status.json", status, durable=False)

    def _replace(self, name: str, content: Mapping[str, Any], durable: bool) -> None:
        temporary = self._folder / f".{name}"
        with temporary.open("w") as file:
            json.dump(content, file, sort_keys=True)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(self._folder / name)
