"""Members of a pool change one after the other."""

from typing import Any

import pytest

from ops import turns
from ops.errors import OperationError
from ops.remote import NodeError
from ops.stacks import planned
from spec.asking import turn_request
from spec.release import Release


class Nodes:
    """What nodes answer: the router's members, and reports of heads, the last one again and again."""

    def __init__(self, members: Any, *reports: Any) -> None:
        self.members, self.reports = members, list(reports)

    def __call__(self, *asked: Any) -> Any:
        answer = self.members
        if "report-rank" in asked:
            answer = self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def release() -> Release:
    return planned("lab-pool")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_POLL_SECONDS", 0.0)


def request_of(release: Release, group: int, **changes: Any) -> dict[str, Any]:
    assert release.router
    return turn_request(release, release.router, release.groups[group]) | changes


def report(release: Release, state: str = "running", **supervisor: Any) -> dict[str, Any]:
    return {"state": state, "generation": release.groups[0].hash, "supervisor": supervisor}


UP = {"members": {"two": {"status": "UP"}}}


def test_a_member_that_is_sent_no_requests_takes_its_turn_at_once(
    release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    for members in ({"members": {}}, {"members": {"two": {"status": "DOWN"}}}, NodeError("off")):
        monkeypatch.setattr(turns, "run_on_node", Nodes(members, AssertionError("nobody else is asked")))
        assert turns.take_turn(request_of(release, 1)) == {"turn": "two"}


def test_the_first_member_waits_for_nobody(release: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "run_on_node", Nodes(AssertionError("nobody is asked")))
    assert turns.take_turn(request_of(release, 0)) == {"turn": "one"}


def test_the_next_member_waits_until_the_one_before_answers_right(
    release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(
        UP,
        report(release, state="serving") | {"generation": "old"},
        {"state": "absent", "generation": None, "supervisor": None},
        report(release, state="starting"),
        report(release, state="serving", answer=None),
        report(release, state="serving", answer="right"),
    )
    monkeypatch.setattr(turns, "run_on_node", nodes)
    assert turns.take_turn(request_of(release, 1)) == {"turn": "two"}
    assert len(nodes.reports) == 1


@pytest.mark.parametrize(
    ("supervisor", "words"),
    [
        (
            {"state": "failed", "cause": {"text": "the engine ended"}},
            "one is failed: the engine ended, so two was left",
        ),
        ({"state": "serving", "answer": "wrong"}, "one is wrong, so two was left as it is"),
    ],
)
def test_a_member_that_does_not_come_back_stops_the_change(
    release: Release, monkeypatch: pytest.MonkeyPatch, supervisor: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr(turns, "run_on_node", Nodes(UP, report(release, **supervisor)))
    with pytest.raises(OperationError, match=words):
        turns.take_turn(request_of(release, 1))


def test_nobody_is_waited_for_without_end(release: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"state": "absent", "generation": None, "supervisor": None}
    monkeypatch.setattr(turns, "run_on_node", Nodes(UP, absent))
    with pytest.raises(OperationError, match="one is absent"):
        turns.take_turn(request_of(release, 1, absent_seconds=0))
    monkeypatch.setattr(turns, "run_on_node", Nodes(UP, report(release, state="starting")))
    with pytest.raises(OperationError, match="one is starting after 0 s"):
        turns.take_turn(request_of(release, 1, wait_seconds=0))


def test_a_member_that_cannot_be_asked_cannot_be_changed_either(
    release: Release, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(turns, "run_on_node", Nodes(UP, NodeError("off")))
    assert turns.take_turn(request_of(release, 1)) == {"turn": "two"}
    assert "one cannot be asked and is not waited for" in capsys.readouterr().err
