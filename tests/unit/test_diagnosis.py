"""What readiness says of a group that did not get ready: last lines, then cause and way out."""

import json
import queue
import subprocess
from typing import Any

import pytest

from ops import readiness
from ops.diagnosis import LastWords, diagnosis, known_failures
from ops.errors import OperationError
from runtime.node import watch

GID = known_failures()["gid-slot-empty"].samples[0].lines[0]
PEER_CLOSED = known_failures()["gloo-peer-closed"].samples[0].lines[0]
HEAD, WORKER = "rank 0 (head) on one", "rank 1 on two"


def test_the_cause_may_stand_on_another_rank() -> None:
    text = diagnosis([LastWords(HEAD, [PEER_CLOSED], 1), LastWords(WORKER, ["INFO", GID])])
    assert text
    assert text.startswith("Known failure gid-slot-empty: ")
    assert "Way out: " in text
    assert text.endswith(f"Seen in: {GID}\n    Said by {WORKER}")


def test_of_equal_explanations_that_of_the_failed_rank_counts() -> None:
    text = diagnosis([LastWords(HEAD, [GID], 1), LastWords(WORKER, [GID], 1)])
    assert text
    assert "Said by" not in text


def test_nothing_is_said_of_what_is_not_known() -> None:
    assert diagnosis([LastWords(HEAD, ["ValueError: the head could not start"], 1)]) is None


CONNECTION = {
    "node": "one",
    "address": "198.51.100.7",
    "user": "root",
    "port": 22,
    "host_key": "ssh-ed25519 AAAA",
    "identity_file": None,
    "connect_timeout_seconds": 5,
}


def report(state: str, lines: list[str], exit_code: int | None = None) -> dict[str, Any]:
    return {
        "state": state,
        "exit_code": exit_code,
        "generation": "g",
        "supervisor": None,
        "last_lines": lines,
        "seconds_since_start": 1.0,
    }


@pytest.fixture
def ranks() -> list[readiness.WatchedRank]:
    plans = [
        {"rank": number, "node": node, "container": f"c{number}", "interfaces": [], "connection": CONNECTION}
        for number, node in enumerate(("one", "two"))
    ]
    return [readiness._watched(plan) for plan in plans]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What each container's node answers when it is asked again."""
    known: dict[str, Any] = {}

    def ask(_connection: Any, _folder: str, _verb: str, request: dict[str, Any], **_: Any) -> Any:
        answer = known[request["container"]]
        if isinstance(answer, OperationError):
            raise answer
        return answer

    monkeypatch.setattr(readiness, "run_on_node", ask)
    return known


REQUEST = {"storage_folder": "/x", "group": "main"}


def ended(ranks: list[readiness.WatchedRank], lines: list[str]) -> OperationError:
    ranks[0].apply(report("ended", lines, 1))
    return readiness._ended(ranks[0], ranks)


def test_an_ended_rank_is_told_with_cause_and_way_out(
    ranks: list[readiness.WatchedRank], answers: dict[str, Any]
) -> None:
    lines = [*(f"line {number}" for number in range(50)), PEER_CLOSED]
    error = ended(ranks, lines)
    answers["c0"] = report("ended", lines, 1)
    answers["c1"] = report("running", [GID, *lines])
    text = str(readiness._explained(REQUEST, ranks, error))
    assert text.startswith(f"{HEAD} ended with exit code 1 before the group was ready ({WORKER}: ")
    assert "line 49\n" in text
    assert "line 20\n" not in text
    assert text.index(f"    {PEER_CLOSED}") < text.index("Known failure gid-slot-empty") < text.index("Way out: ")
    assert text.endswith(f"Said by {WORKER}")


def test_a_cause_above_the_lines_that_are_shown_is_found(
    ranks: list[readiness.WatchedRank], answers: dict[str, Any]
) -> None:
    lines = [GID, *(f"line {number}" for number in range(300))]
    error = ended(ranks, lines)
    answers["c0"] = report("ended", lines, 1)
    answers["c1"] = report("running", [])
    text = str(readiness._explained(REQUEST, ranks, error))
    assert text.endswith(f"Seen in: {GID}\n    Said by {HEAD}")


def test_a_node_that_cannot_be_asked_hides_nothing(ranks: list[readiness.WatchedRank], answers: dict[str, Any]) -> None:
    error = ended(ranks, [PEER_CLOSED])
    answers["c0"] = answers["c1"] = OperationError("unreachable")
    assert "Known failure gloo-peer-closed" in str(readiness._explained(REQUEST, ranks, error))


def test_a_killed_rank_is_told_by_its_exit_code(ranks: list[readiness.WatchedRank], answers: dict[str, Any]) -> None:
    answers["c0"] = report("ended", ["INFO head"], 137)
    answers["c1"] = report("running", [])
    text = str(readiness._explained(REQUEST, ranks, OperationError("it ended")))
    assert text.startswith("it ended\nKnown failure killed-without-a-word: ")


def test_a_wrong_answer_is_told_with_its_cause(ranks: list[readiness.WatchedRank], answers: dict[str, Any]) -> None:
    answers["c0"] = answers["c1"] = report("running", ["INFO"])
    error = OperationError("expected '391' (contains), got 'x'; the ranks run, but what they compute is wrong")
    text = str(readiness._explained(REQUEST, ranks, error))
    assert "Known failure wrong-answers-of-moe-backend" in text


def test_an_unknown_failure_is_told_as_before(ranks: list[readiness.WatchedRank], answers: dict[str, Any]) -> None:
    error = ended(ranks, ["ValueError: the head could not start"])
    answers["c0"] = report("ended", ["ValueError: the head could not start"], 1)
    answers["c1"] = report("running", [])
    assert readiness._explained(REQUEST, ranks, error) is error


def test_a_heartbeat_is_short_and_the_last_report_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"line {number}" for number in range(500)]
    seen = iter([{"state": "running"}, {"state": "running"}, {"state": "ended", "exit_code": 1}])
    asked: list[int] = []

    def logs(*words: str, **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(int(words[2]))
        return subprocess.CompletedProcess(words, 0, "\n".join(lines[-asked[-1] :]), "")

    monkeypatch.setattr(watch, "_look", lambda _: next(seen))
    monkeypatch.setattr(watch, "docker", logs)
    monkeypatch.setattr(watch.time, "sleep", lambda _: None)
    last = watch.watch_rank({"container": "c", "interfaces": []})
    (heartbeat,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert heartbeat["last_lines"] == lines[-30:]
    assert last["last_lines"] == lines[-400:]
    assert asked == [30, 400], "nothing is read of a rank that has nothing new to say"


def test_a_rank_that_its_peer_ended_is_not_taken_for_the_cause(ranks: list[readiness.WatchedRank]) -> None:
    for rank in ranks:
        rank.apply(report("running", []))
    events: queue.Queue[readiness.Event] = queue.Queue()
    events.put((ranks[0], report("ended", ["ended by a peer"], 70)))
    events.put((ranks[1], report("ended", ["ValueError: no such file"], 3)))
    with pytest.raises(OperationError, match=r"rank 1 .* ended with exit code 3 before the group was ready"):
        readiness._follow({**REQUEST, "probe": None, "start_timeout_seconds": 60}, ranks, events)


def test_ranks_that_all_were_ended_by_peers_are_told_of(ranks: list[readiness.WatchedRank]) -> None:
    for rank in ranks:
        rank.apply(report("running", []))
    events: queue.Queue[readiness.Event] = queue.Queue()
    for rank in ranks:
        events.put((rank, report("ended", ["nothing heard of the other"], 70)))
    with pytest.raises(OperationError, match="ended with exit code 70 before the group was ready"):
        readiness._follow({**REQUEST, "probe": None, "start_timeout_seconds": 60}, ranks, events)
