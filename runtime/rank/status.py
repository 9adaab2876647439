"""What a supervisor says of its rank: the words that peers compare and people read."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

RESOLVING = "resolving"
GATHERING = "gathering"
STARTING = "starting"
SERVING = "serving"
STOPPING = "stopping"
TRIPPED = "tripped"
FAILED = "failed"
STATES = (RESOLVING, GATHERING, STARTING, SERVING, STOPPING, TRIPPED, FAILED)

PARKED = (TRIPPED, FAILED)
"""States that only `pulumi up` ends."""

ENDED_BY_A_PEER = 70
"""Exit code of a job's rank whose engine was ended because a peer's had failed."""


@dataclass(frozen=True)
class Cause:
    """Why a group stopped.

    Attributes:
        rank: where it began.
        text: what happened, with figures.
        at_seconds: when, by the clock of that rank's node.
        asked: whether somebody wanted it, so that it is no failure.
    """

    rank: int
    text: str
    at_seconds: float
    asked: bool = False

    @staticmethod
    def from_plain(data: Mapping[str, Any] | None) -> "Cause | None":
        """Reads a cause from JSON data."""
        return None if data is None else Cause(**data)


@dataclass(frozen=True)
class Identity:
    """What must be equal on all ranks of a group.

    Attributes:
        generation: hash of the group.
        image: identity of the image on the rank's node, by content.
        nccl: version of the one libnccl in it.
        arguments: hash of what all ranks are started with.
        runtime: hash of this runtime.
    """

    generation: str
    image: str
    nccl: str
    arguments: str
    runtime: str


@dataclass(frozen=True)
class Status:
    """One rank at one moment.

    Attributes:
        rank, node: which one.
        state: one of `STATES`.
        identity: what peers compare.
        token: names this attempt of this supervisor to join a group; another attempt has another one.
        ready: whether nothing of an earlier engine is left here and its memory is free.
        view: tokens of all ranks that were ready together, in order of ranks; none until all were seen.
        clock_seconds: of the node.
        ended: the exit code of a job whose part has ended.
        cause: of the last stop.
        cause_view: the view that this stop ended.
        waiting_for: what keeps it from going on, for people.
        rails: what was found of the fabric.
        memory: figures of the guard, for people.
        engine: process id and age of the engine, or when the last one was gone; for people.
        restarts: by itself, within the window.
        exchanged_bytes: what supervisors have put on this node's rails.
        answer: of a head behind a router: `right` or `wrong` since its engine started; none before, and without one.
        draining: whether it takes nothing new, because it was asked to stop.
    """

    rank: int
    node: str
    state: str
    identity: Identity
    token: str
    ready: bool = False
    view: tuple[str, ...] | None = None
    clock_seconds: float = 0.0
    ended: int | None = None
    cause: Cause | None = None
    cause_view: tuple[str, ...] | None = None
    waiting_for: tuple[str, ...] = ()
    rails: tuple[Mapping[str, Any], ...] = ()
    memory: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    restarts: int = 0
    exchanged_bytes: int = 0
    answer: str | None = None
    draining: bool = False

    def to_plain(self) -> dict[str, Any]:
        """Returns it as JSON data."""
        return asdict(self)

    @staticmethod
    def from_plain(data: Mapping[str, Any]) -> "Status":
        """Reads what `to_plain` wrote.

        Raises:
            TypeError, KeyError, ValueError: it is of another version of the runtime.
        """
        if data["state"] not in STATES:
            raise ValueError(f"there is no state {data['state']!r}")
        return Status(
            **{
                **data,
                "identity": Identity(**data["identity"]),
                "view": _texts(data["view"]),
                "cause": Cause.from_plain(data["cause"]),
                "cause_view": _texts(data["cause_view"]),
                "waiting_for": tuple(data["waiting_for"]),
                "rails": tuple(data["rails"]),
            }
        )


def _texts(data: Any) -> tuple[str, ...] | None:
    return None if data is None else tuple(data)
