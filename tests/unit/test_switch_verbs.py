"""`fleet switch`, `fleet claims` and `fleet give-up`: what is refused, asked and shown, and with which exit code."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from typer.testing import Result as Ran

from ops import switch, switch_verbs
from ops.cli import app
from ops.errors import OperationError
from ops.giving_up import GivenUp
from ops.release_history import StackHistory
from ops.stacks import CATALOG
from ops.switch import Brought, Controller, Giver, Outcome, Plan, Result, Times, plan_switch
from spec.catalog import read_stack
from spec.claims import Found, RankContainer
from spec.handover import hand_over
from spec.plan import plan_release
from spec.release import Release

PROJECT = Path(__file__).parents[2]


def release(stack: str, *nodes: str) -> Release:
    return plan_release(stack, read_stack(PROJECT, "lab") | {"groups": {"main": list(nodes)}}, CATALOG)


FROM, TO = release("lab", "lab-1", "lab-2"), release("lab-tp4", "lab-1", "lab-2", "lab-3", "lab-4")


class Told:
    """Stands for nodes and Pulumi: a switch that ends as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.result = Result("done", times=Times(3.2, 10.4, 40.0), serving=("lab-tp4",))
        self.giver = Giver("lab", FROM, was_ready=True, is_active=True)
        self.carried_out = 0
        monkeypatch.setattr(switch_verbs, "ensure_toolchain", lambda _: None)
        monkeypatch.setattr(switch_verbs, "environment_of", lambda _: {})
        monkeypatch.setattr(switch_verbs, "plan_switch", lambda *_: Plan((self.giver,), TO, hand_over([FROM], TO)))
        monkeypatch.setattr(switch_verbs, "check", lambda *_: Brought({}, {}))
        monkeypatch.setattr(switch_verbs, "carry_out", self._carry_out)

    def _carry_out(self, *_: Any) -> Result:
        self.carried_out += 1
        return self.result

    @staticmethod
    def run(*words: str) -> Ran:
        return CliRunner().invoke(app, words)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


def test_a_switch_shows_who_is_where_and_where_the_time_went(told: Told) -> None:
    ran = told.run("switch", "lab", "lab-tp4", "--yes")
    assert ran.exit_code == 0
    assert "lab-tp4 serves: stop 3 s, start 10 s, ready 40 s" in ran.stdout
    rows = [line.split() for line in ran.stderr.splitlines() if line.startswith("lab-")]
    assert rows[0] == ["lab-1", *["lab", "main", "rank", "0"], *["lab-tp4", "main", "rank", "0"]]
    assert rows[3] == ["lab-4", "free", *["lab-tp4", "main", "rank", "3"]]


def test_without_somebody_to_ask_nothing_is_touched(told: Told) -> None:
    ran = told.run("switch", "lab", "lab-tp4")
    assert isinstance(ran.exception, OperationError)
    assert "nothing was touched: say --yes" in str(ran.exception)
    assert told.carried_out == 0


@pytest.mark.parametrize(("outcome", "code"), [("done", 0), ("restored", 4), ("down", 5)])
def test_exit_codes_tell_who_serves(told: Told, outcome: Outcome, code: int) -> None:
    told.result = Result(outcome, why="its engine ended", serving=("lab",) if outcome == "restored" else ())
    ran = told.run("switch", "lab", "lab-tp4", "--yes", "--json")
    assert ran.exit_code == code
    data = json.loads(ran.stdout)
    assert (data["outcome"], data["why"], data["to"]["stack"]) == (outcome, "its engine ended", "lab-tp4")
    assert [node["fate"] for node in data["nodes"]] == ["kept", "kept", "taken", "taken"]


def test_what_is_left_and_what_does_not_come_back_is_told(told: Told) -> None:
    left = GivenUp("lab-4", ("main-lab-4-claim",), ("gb10-lab-tp4-main-rank3",))
    told.result = Result("down", "lab-4 died", None, (), {"lab": "lab-1 does not answer"}, (left,))
    out = told.run("switch", "lab", "lab-tp4", "--yes").stdout
    assert "lab-tp4 does not serve: lab-4 died" in out
    assert "lab-4: given up. Left there, as far as is known: gb10-lab-tp4-main-rank3" in out
    assert "`./fleet claims show lab` when it is back" in out
    assert "lab is down: lab-1 does not answer" in out


def test_the_plan_says_what_would_come_back(told: Told) -> None:
    told.giver = Giver("lab", FROM, was_ready=False, is_active=False)
    words = " ".join(told.run("switch", "lab", "lab-tp4", "--yes").stderr.split())
    assert "lab is parked already; if lab-tp4 does not serve, it is started" in words
    assert "lab was never ready" in words


def controller() -> Controller:
    return Controller({}, print)


def test_a_stack_is_not_switched_to_itself() -> None:
    with pytest.raises(OperationError, match="from some stacks to another"):
        plan_switch(["lab", "lab-tp4"], "lab", controller())
    with pytest.raises(OperationError, match="from some stacks to another"):
        plan_switch(["lab", "lab"], "lab-tp4", controller())


def test_what_was_never_deployed_or_cannot_have_served_together_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch, "read_history", lambda stack, *_: StackHistory(stack, None, ()))
    monkeypatch.setattr(switch, "resources", lambda *_: [])
    with pytest.raises(OperationError, match="nothing of lab is deployed"):
        plan_switch(["lab"], "lab-tp4", controller())
    monkeypatch.setattr(switch, "resources", lambda *_: [{}])
    with pytest.raises(OperationError, match="lab and lab-pool both use lab-1, so only one of them serves"):
        plan_switch(["lab", "lab-pool"], "lab-tp4", controller())
    alone = plan_switch([], "lab-tp4", controller())
    assert alone.handover.taken == ("lab-1", "lab-2", "lab-3", "lab-4")


def test_claims_come_with_the_command_that_clears_them(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = {"stack": "lab", "group": "main", "generation": "f" * 64, "since": "2026-11-30T17:00:00Z", "by": "ann@desk"}
    container = RankContainer(name="gb10-lab-main-rank0", stack="lab", group="main", state="exited")
    found = {
        "lab-1": Found(state="held", claim=claim, containers=(container,), why="its state holds this node"),
        "lab-2": Found(state="stale", claim=claim, containers=(), why="nobody"),
        "lab-3": Found(state="left", claim=None, containers=(container,), why="nobody"),
        "lab-4": Found(state="unknown", claim=None, containers=(), why="does not answer"),
    }
    cleared: list[str] = []
    monkeypatch.setattr(switch_verbs, "_look", lambda _: found)
    monkeypatch.setattr(switch_verbs, "clear", lambda _cluster, node, _found: cleared.append(node))
    lines = told.run("claims", "show", "lab").stdout.splitlines()
    assert lines[-2:] == ["./fleet claims clear lab lab-2", "./fleet claims clear lab lab-3"]
    assert json.loads(told.run("claims", "show", "lab", "--json").stdout)["lab-4"]["state"] == "unknown"
    assert "lab-3 is free; removed gb10-lab-main-rank0" in told.run("claims", "clear", "lab", "lab-3").stdout
    assert cleared == ["lab-3"]
    assert "not in cluster lab" in str(told.run("claims", "clear", "lab", "box").exception)


def test_a_node_that_answers_is_not_given_up(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    monkeypatch.setattr(switch_verbs, "resources", lambda *_, **__: [])
    monkeypatch.setattr(switch_verbs, "await_lock", lambda *_: None)
    monkeypatch.setattr(switch_verbs, "nodes_in", lambda _: {"lab-1": ("lab-1", ""), "lab-2": ("lab-2", "")})
    monkeypatch.setattr(switch_verbs, "why_unreachable", lambda node, _: "it is off" if node == "lab-2" else None)
    monkeypatch.setattr(switch_verbs, "give_up", lambda _stack, nodes, _variables: given.extend(nodes) or [])
    assert "lab-1 answers" in str(told.run("give-up", "lab", "lab-1", "--yes").exception)
    assert told.run("give-up", "lab", "lab-2", "--yes").exit_code == 0
    assert given == ["lab-2"]
