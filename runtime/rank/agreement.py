"""When the ranks of a group may start, and when they must stop: decided from what each knows, and nothing else.

A rank that has nothing left of an earlier engine, and whose memory is free, is *ready* and has a token that no other
attempt ever had. Once it sees every peer ready it publishes their tokens as its *view*. It starts its engine only when
every peer has published that same view. So an engine starts only if all ranks were without an engine since they took
the tokens in the view, and each of them starts at most one engine for it: engines of two views never meet. From then on
a peer whose token is not in the view has left, and the rank stops.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtime.rank.request import Patience, Peer
from runtime.rank.status import GATHERING, PARKED, SERVING, STARTING, STOPPING, Cause, Identity, Status

MOST_CLOCK_SKEW_SECONDS = 30.0
FRESH_SECONDS = 2.0
"""How old a peer's word may be for an engine to start on it."""

REFUSED_SECONDS = 1.0
"""How long a peer's address must refuse connections for the peer to count as gone."""

_TOGETHER = (GATHERING, STARTING, SERVING)


@dataclass(frozen=True)
class Sight:
    """What is known of a peer.

    Attributes:
        status: its last answer that was genuine, none so far.
        age_seconds: since then, or since it has been asked for the first time.
        trouble: why it did not answer the last time, none if it did.
        refused_seconds: for how long its address has been refusing connections.
        skew_seconds: its clock minus ours when it last answered.
    """

    status: Status | None
    age_seconds: float
    trouble: str | None = None
    refused_seconds: float = 0.0
    skew_seconds: float = 0.0


Sights = Mapping[int, Sight]


@dataclass(frozen=True)
class Gathering:
    """What a ready rank concludes while it gathers.

    Attributes:
        view: tokens of all ranks, none until every peer was seen ready.
        may_start: whether every peer has the same view now.
        waiting_for: what is missing, for people.
        parked: a peer that only `pulumi up` brings back.
    """

    view: tuple[str, ...] | None
    may_start: bool
    waiting_for: tuple[str, ...]
    parked: Status | None = None


def gather(own: Status, others: Sequence[Peer], sights: Sights) -> Gathering:
    """Decides whether a rank that gathers may start."""
    parked = _first_parked(own, others, sights)
    if parked:
        return Gathering(None, False, (), parked)
    missing = [text for peer in others for text in _missing(own, peer, sights[peer.rank])]
    if missing or not own.ready:
        return Gathering(None, False, tuple(missing))
    tokens = {own.rank: own.token, **{peer.rank: _status(sights, peer).token for peer in others}}
    view = tuple(tokens[rank] for rank in sorted(tokens))
    behind = [peer.name for peer in others if _status(sights, peer).view != view]
    stale = [peer.name for peer in others if sights[peer.rank].age_seconds > FRESH_SECONDS]
    waiting = [f"{name} has not seen all of us yet" for name in behind]
    waiting += [f"{name} has not answered just now" for name in stale]
    return Gathering(view, own.view == view and not waiting, tuple(waiting))


def differences(own: Identity, peer: Peer, sight: Sight) -> list[str]:
    """Returns why this peer is no member of this group, each by its name."""
    status = sight.status
    if status is None:
        return []
    other = status.identity
    if other.generation != own.generation:
        return [
            f"{peer.name} is of generation {other.generation[:12]} and this group is of {own.generation[:12]}: refused."
            " It was started by hand or left over; remove that container and run `pulumi up`"
        ]
    found = [
        f"{peer.name} has another {what}: {theirs}, here {ours}: refused. {way_out}"
        for what, ours, theirs, way_out in (
            ("image", own.image, other.image, "`docker rmi` it there and run `pulumi up`"),
            ("NCCL version", own.nccl, other.nccl, "use one image on all nodes"),
            ("argument hash", own.arguments, other.arguments, "run `pulumi up`"),
            ("runtime", own.runtime, other.runtime, "`pulumi up --replace` the group's generation"),
        )
        if ours != theirs
    ]
    if abs(sight.skew_seconds) > MOST_CLOCK_SKEW_SECONDS:
        found.append(f"the clock of {peer.name} is {sight.skew_seconds:+.0f} s off: start time synchronisation there")
    return found


def lost(own: Status, others: Sequence[Peer], sights: Sights, patience: Patience, now_seconds: float) -> Cause | None:
    """Returns why a rank whose engine runs must stop, none as long as the group holds.

    Args:
        own: this rank; its view is the one that its engine was started for.
        others: its peers.
        sights: what is known of each.
        patience: for silent peers.
        now_seconds: the node's clock, for the cause.
    """
    causes = [
        cause for peer in others if (cause := _loss(own, peer, sights[peer.rank], patience, now_seconds)) is not None
    ]
    return earliest(causes)


def earliest(causes: Sequence[Cause]) -> Cause | None:
    """Returns the cause that came first: a failure before what somebody asked for at the same time."""
    return min(causes, key=lambda cause: (cause.at_seconds, cause.asked), default=None)


def causes_of(view: tuple[str, ...] | None, others: Sequence[Peer], sights: Sights) -> list[Cause]:
    """Returns what peers say ended this view."""
    statuses = [sights[peer.rank].status for peer in others]
    return [status.cause for status in statuses if status and status.cause and status.cause_view == view]


def all_done(others: Sequence[Peer], sights: Sights) -> bool:
    """Tells whether every peer of a job has done its part."""
    return all((status := sights[peer.rank].status) is not None and status.ended == 0 for peer in others)


def all_ended(others: Sequence[Peer], sights: Sights, patience: Patience) -> bool:
    """Tells whether every peer of a job that failed has ended its part, or is gone."""
    return all(_has_ended(sights[peer.rank], patience) for peer in others)


def _has_ended(sight: Sight, patience: Patience) -> bool:
    is_gone = sight.refused_seconds >= REFUSED_SECONDS or sight.age_seconds > patience.silence_while_starting
    return is_gone or (sight.status is not None and sight.status.ended is not None)


def _loss(own: Status, peer: Peer, sight: Sight, patience: Patience, now_seconds: float) -> Cause | None:
    status = sight.status
    if status is not None and status.ended == 0:
        return None
    silence = patience.silence_while_serving if own.state == SERVING else patience.silence_while_starting
    if sight.refused_seconds >= REFUSED_SECONDS:
        return Cause(peer.rank, f"{peer.name} has gone: nothing listens at {peer.address}", now_seconds)
    if status is None or sight.age_seconds > silence:
        text = f"{peer.name} has not answered for {sight.age_seconds:.1f} s: {sight.trouble or 'silence'}"
        return Cause(peer.rank, text, now_seconds)
    if status.state in PARKED or status.state == STOPPING or status.token not in (own.view or ()):
        reported = status.cause if status.cause_view == own.view else None
        return reported or Cause(peer.rank, f"{peer.name} left the group and is {status.state} now", now_seconds)
    if wrong := differences(own.identity, peer, Sight(status, 0.0)):
        return Cause(peer.rank, wrong[0], now_seconds)
    return None


def _first_parked(own: Status, others: Sequence[Peer], sights: Sights) -> Status | None:
    for peer in others:
        sight = sights[peer.rank]
        if (
            sight.status
            and sight.trouble is None
            and sight.status.state in PARKED
            and sight.status.identity.generation == own.identity.generation
        ):
            return sight.status
    return None


def _missing(own: Status, peer: Peer, sight: Sight) -> list[str]:
    """Returns why this peer is not there yet."""
    if sight.status is None or sight.trouble is not None:
        return [f"{peer.name} ({peer.address}): {sight.trouble or 'not asked yet'}"]
    if wrong := differences(own.identity, peer, sight):
        return wrong
    status = sight.status
    knows_us = status.view is not None and own.token in status.view
    if status.state == GATHERING and status.ready:
        return []
    if knows_us and (status.state in _TOGETHER or status.ended is not None):
        return []
    detail = f": {'; '.join(status.waiting_for)}" if status.waiting_for else ""
    return [f"{peer.name} is {status.state}{detail}"]


def _status(sights: Sights, peer: Peer) -> Status:
    status = sights[peer.rank].status
    assert status is not None
    return status
