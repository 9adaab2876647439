"""When ranks may start and must stop: single cases, and groups whose messages come in any order."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.rank.agreement import Sight, all_ended, differences, gather, lost
from runtime.rank.request import Patience, Peer
from runtime.rank.status import FAILED, GATHERING, SERVING, STARTING, STOPPING, Cause, Identity, Status

IDENTITY = Identity("g" * 64, "sha256:i", "2.30.7", "a" * 64, "r" * 64)
PATIENCE = Patience(60, 60, 60, 60, 3, 15, 3.5)
PEER = Peer(1, "gb10-2", "203.0.113.12", 7717)


def status(rank: int = 0, state: str = GATHERING, **more: object) -> Status:
    return replace(Status(rank, f"gb10-{rank + 1}", state, IDENTITY, f"t{rank}", ready=True), **more)


def sight(found: Status | None, age: float = 0.1, trouble: str | None = None, refused: float = 0.0) -> Sight:
    return Sight(found, age, trouble, refused)


def test_a_rank_starts_when_its_peer_has_seen_the_same() -> None:
    alone = gather(status(), [PEER], {1: sight(status(1))})
    assert alone.view == ("t0", "t1")
    assert not alone.may_start
    own = status(view=("t0", "t1"))
    assert not gather(own, [PEER], {1: sight(status(1))}).may_start
    assert gather(own, [PEER], {1: sight(status(1, view=("t0", "t1")))}).may_start
    assert gather(own, [PEER], {1: sight(status(1, STARTING, view=("t0", "t1")))}).may_start
    for code in (0, 3):
        assert gather(own, [PEER], {1: sight(status(1, STOPPING, view=("t0", "t1"), ended=code))}).may_start


def test_a_rank_alone_has_nobody_to_wait_for() -> None:
    assert not gather(status(), [], {}).may_start
    assert gather(status(view=("t0",)), [], {}).may_start


@pytest.mark.parametrize(
    "peer",
    [
        status(1, ready=False, waiting_for=("memory: 3 MiB are available",)),
        status(1, STOPPING),
        status(1, SERVING, view=("old", "t1")),
        status(1, view=("old", "t1")),
    ],
    ids=["memory", "stopping", "serves-without-us", "has-seen-our-last-attempt"],
)
def test_a_rank_waits(peer: Status) -> None:
    found = gather(status(view=("t0", "t1")), [PEER], {1: sight(peer)})
    assert not found.may_start
    assert found.waiting_for


def test_an_old_word_of_a_peer_is_not_enough_to_start() -> None:
    own, peer = status(view=("t0", "t1")), status(1, view=("t0", "t1"))
    assert not gather(own, [PEER], {1: sight(peer, age=2.5)}).may_start


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"generation": "h" * 64}, "rank 1 on gb10-2 is of generation hhhhhhhhhhhh and this group is of gggggggggggg"),
        ({"image": "sha256:j"}, "rank 1 on gb10-2 has another image: sha256:j, here sha256:i"),
        ({"nccl": "2.29.1"}, "has another NCCL version: 2.29.1, here 2.30.7"),
        ({"arguments": "b"}, "has another argument hash"),
        ({"runtime": "s"}, "has another runtime"),
    ],
)
def test_a_stranger_is_refused_by_name(change: dict[str, str], words: str) -> None:
    stranger = status(1, identity=replace(IDENTITY, **change))
    found = gather(status(), [PEER], {1: sight(stranger)})
    assert found.view is None
    assert words in found.waiting_for[0]
    assert "refused" in found.waiting_for[0]
    loss = lost(status(state=SERVING, view=("t0", "t1")), [PEER], {1: sight(stranger)}, PATIENCE, 5.0)
    assert loss is not None
    assert words in loss.text


def test_a_wrong_clock_keeps_a_group_from_starting_and_not_from_serving() -> None:
    skewed = Sight(status(1, SERVING, view=("t0", "t1")), 0.1, skew_seconds=-31)
    assert differences(IDENTITY, PEER, skewed) == [
        "the clock of rank 1 on gb10-2 is -31 s off: start time synchronisation there"
    ]
    assert lost(status(state=SERVING, view=("t0", "t1")), [PEER], {1: skewed}, PATIENCE, 5.0) is None


def test_a_parked_peer_parks_the_group() -> None:
    cause = Cause(1, "MemAvailable 3 MiB", 7.0)
    assert gather(status(), [PEER], {1: sight(status(1, FAILED, cause=cause))}).parked is not None
    gone = sight(status(1, FAILED, cause=cause), trouble="no answer")
    assert gather(status(), [PEER], {1: gone}).parked is None


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            sight(status(1, SERVING, view=("t0", "t1")), age=3.6, trouble="no answer within 1.5 s"),
            "not answered for 3.6 s",
        ),
        (sight(status(1, SERVING, view=("t0", "t1")), age=1.1, trouble="refused", refused=1.0), "has gone"),
        (sight(status(1, token="t1b")), "left the group and is gathering now"),
        (
            sight(status(1, STOPPING, cause=Cause(1, "the engine died", 3.0), cause_view=("t0", "t1"))),
            "the engine died",
        ),
    ],
    ids=["silent", "refused", "anew", "stopping"],
)
def test_a_serving_rank_stops_when_a_peer_is_lost(found: Sight, words: str) -> None:
    loss = lost(status(state=SERVING, view=("t0", "t1")), [PEER], {1: found}, PATIENCE, 5.0)
    assert loss is not None
    assert loss.rank == 1
    assert words in loss.text


@pytest.mark.parametrize(
    "found",
    [
        sight(status(1, SERVING, view=("t0", "t1")), age=3.4, trouble="no answer within 1.5 s"),
        sight(status(1, SERVING, view=("t0", "t1")), age=0.6, trouble="refused", refused=0.5),
        sight(status(1, GATHERING, view=("t0", "t1"))),
        sight(status(1, STOPPING, ended=0), age=60, refused=9),
    ],
    ids=["slow", "refused-once", "about-to-start", "its-job-is-done"],
)
def test_a_serving_rank_goes_on(found: Sight) -> None:
    assert lost(status(state=SERVING, view=("t0", "t1")), [PEER], {1: found}, PATIENCE, 5.0) is None


def test_nobody_waits_long_for_a_loading_peer_only_while_serving() -> None:
    slow = {1: sight(status(1, STARTING, view=("t0", "t1")), age=6, trouble="no answer within 1.5 s")}
    assert lost(status(state=STARTING, view=("t0", "t1")), [PEER], slow, PATIENCE, 5.0) is None
    assert lost(status(state=SERVING, view=("t0", "t1")), [PEER], slow, PATIENCE, 5.0) is not None


def test_the_first_failure_is_the_cause() -> None:
    peers = [PEER, Peer(2, "gb10-3", "203.0.113.13", 7717)]
    view = ("t0", "t1", "t2")
    first, second = Cause(2, "the engine of rank 2 died", 3.0), Cause(1, "rank 2 left", 4.0)
    sights = {
        1: sight(status(1, STOPPING, cause=second, cause_view=view)),
        2: sight(status(2, STOPPING, cause=first, cause_view=view)),
    }
    assert lost(status(state=SERVING, view=view), peers, sights, PATIENCE, 5.0) == first


@pytest.mark.parametrize(
    ("found", "knows"),
    [
        (sight(status(1, view=("t0", "t1"))), False),
        (sight(status(1, STARTING, view=("t0", "t1"))), False),
        (sight(status(1, STOPPING, view=("t0", "t1"), ended=70)), True),
        (sight(status(1, STARTING, view=("t0", "t1")), trouble="refused", refused=1.0), True),
        (sight(None, age=6.0, trouble="no answer within 1.5 s"), False),
        (sight(None, age=600.0, trouble="no answer within 1.5 s"), True),
    ],
    ids=["gathers", "starts", "has-ended", "gone", "slow", "silent"],
)
def test_a_job_that_failed_stays_until_its_peers_know(found: Sight, knows: bool) -> None:
    assert all_ended([PEER], {1: found}, PATIENCE) is knows


@dataclass
class ModelRank:
    """A rank as the supervisor runs it, without processes and clocks: what it shows and what it last saw."""

    number: int
    ranks: int
    lives: Iterator[int]
    shown: Status = field(init=False)
    engine: tuple[str, ...] | None = None
    seen: dict[int, Sight] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.begin()

    @property
    def peers(self) -> list[Peer]:
        return [Peer(other, f"n{other}", "", 0) for other in range(self.ranks) if other != self.number]

    def begin(self) -> None:
        """Starts anew, without an engine, as after a kill or a stop."""
        self.engine = None
        self.shown = status(self.number, token=f"{self.number}-{next(self.lives)}")

    def restart(self) -> None:
        self.seen = {}
        self.begin()

    def look_at(self, other: "ModelRank") -> None:
        self.seen[other.number] = sight(other.shown)

    def decide(self) -> None:
        sights = {peer.rank: self.seen.get(peer.rank, sight(None)) for peer in self.peers}
        if self.shown.state == GATHERING:
            found = gather(self.shown, self.peers, sights)
            self.shown = replace(self.shown, view=found.view)
            if found.may_start:
                self.shown = replace(self.shown, state=STARTING)
                self.engine = found.view
        elif lost(self.shown, self.peers, sights, PATIENCE, 0.0):
            self.begin()


def check_engines(group: list[ModelRank]) -> None:
    views = {rank.engine for rank in group if rank.engine}
    assert len(views) <= 1, f"engines of {len(views)} views run at once"


@settings(max_examples=400, deadline=None)
@given(ranks=st.integers(2, 5), deaths=st.floats(0.001, 0.1), seed=st.integers(0, 2**32))
def test_engines_of_two_views_never_run_at_once(ranks: int, deaths: float, seed: int) -> None:
    """Looks come in any order and ranks die at any moment; afterwards, left alone, the group comes together."""
    chance, lives = random.Random(seed), iter(range(10**9))
    group = [ModelRank(number, ranks, lives) for number in range(ranks)]
    for _ in range(300):
        rank, other = chance.sample(group, 2)
        kind = chance.random()
        if kind < deaths:
            rank.restart()
        elif kind < 0.6:
            rank.look_at(other)
        else:
            rank.decide()
            check_engines(group)
    for _ in range(12):
        for rank in group:
            for other in group:
                if other is not rank:
                    rank.look_at(other)
            rank.decide()
            check_engines(group)
    assert len({rank.engine for rank in group}) == 1
    assert group[0].engine is not None
