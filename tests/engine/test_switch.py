"""Nodes handed from one deployment to another, by the real engine on real nodes."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.docker_engine import existing_engine
from lab.node import container_name
from ops.claims import clear, looked_at
from ops.errors import OperationError
from ops.giving_up import give_up, machines_in
from ops.release_history import read_history
from ops.stack_file import is_active
from ops.stack_state import known_stacks, resources
from ops.switch import Controller, Plan, Result, carry_out, check, plan_switch
from spec.claims import StackView
from tests.virtual import FABRIC, NODES, PROJECT, STORAGE, Project, cheap_deployment, paused

RIGHT = "17 x 23 = 391"


class Operator:
    """Somebody who switches between the stacks of a project."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.lines: list[str] = []

    @property
    def controller(self) -> Controller:
        return Controller(self.project.variables, self.lines.append, self.project.folder)

    def plan(self, *stacks: str) -> Plan:
        return plan_switch(stacks[:-1], stacks[-1], self.controller)

    def switch(self, *stacks: str) -> Result:
        plan = self.plan(*stacks)
        return carry_out(plan, check(plan, self.controller), self.controller)

    def up(self, stack: str, *nodes: str, **more: Any) -> None:
        run = self.project.up(stack, cheap_deployment(*nodes) | more)
        assert run.code == 0, run.output

    def containers(self) -> dict[str, list[str]]:
        return {node: self.project.containers(node) for node in NODES}

    def holders(self) -> dict[str, str | None]:
        found = looked_at(self.project.cluster, self.views())
        return {node: one.claim["stack"] if one.claim else None for node, one in found.items()}

    def views(self) -> dict[str, StackView]:
        variables, folder = self.project.variables, self.project.folder
        return {
            name: StackView(machines=machines_in(resources(name, variables, folder)))
            for name in known_stacks(variables, folder)
        }

    def is_active(self, stack: str) -> bool:
        return is_active(stack, self.project.folder)


@pytest.fixture
def operator(project: Project) -> Operator:
    return Operator(project)


def test_two_deployments_make_room_for_one_and_one_comes_back(operator: Operator) -> None:
    operator.up("one", "test-1", "test-2")
    operator.up("two", "test-4")
    operator.project.write("wide", cheap_deployment("test-2", "test-3", "test-4", "test-1"))
    plan = operator.plan("one", "two", "wide")
    assert {one.node: one.fate for one in plan.handover.nodes} == {
        "test-1": "kept",
        "test-2": "kept",
        "test-3": "taken",
        "test-4": "kept",
    }

    there = operator.switch("one", "two", "wide")
    assert (there.outcome, there.serving) == ("done", ("wide",))
    assert there.times is not None
    assert operator.project.ask("test-2") == RIGHT
    assert operator.holders() == dict.fromkeys(NODES, "wide")
    assert all(len(names) == 1 and "wide" in names[0] for names in operator.containers().values())
    assert [operator.is_active(stack) for stack in ("one", "two", "wide")] == [False, False, True]

    # The parked ones stay parked, whatever is run, and keep their history.
    again = operator.project.up("one")
    assert again.code == 0, again.output
    assert "parked (active: false)" in again.output
    assert operator.project.preview("one").changed() <= {"release-begun", "release-history"}
    assert len(read_history("one", operator.project.variables, operator.project.folder).ready) == 1
    assert operator.project.ask("test-2") == RIGHT

    back = operator.switch("wide", "one")
    assert back.outcome == "done"
    assert operator.project.ask("test-1") == RIGHT
    assert operator.holders() == {"test-1": "one", "test-2": "one", "test-3": None, "test-4": None}
    assert operator.switch("two").outcome == "done"
    assert operator.project.ask("test-4") == RIGHT


def test_a_claim_says_who_holds_the_node_with_what_since_when(operator: Operator) -> None:
    operator.up("one", "test-1", "test-2")
    found = looked_at(operator.project.cluster, operator.views())
    claim = found["test-1"].claim
    assert claim is not None
    assert (claim["stack"], claim["group"]) == ("one", "main")
    generation = operator.project.on_node(
        "test-1", "docker inspect --format '{{index .Config.Labels \"gb10-serving.generation\"}}' gb10-one-main-rank0"
    )
    assert claim["generation"] == generation.strip()
    assert "@" in claim["by"]
    assert [found[node].state for node in NODES] == ["held", "held", "free", "free"]


def test_a_second_stack_that_moves_onto_held_nodes_is_refused_and_goes_on_serving(operator: Operator) -> None:
    operator.up("one", "test-1", "test-2")
    operator.up("two", "test-3")
    run = operator.project.up("two", cheap_deployment("test-3", "test-2"))
    assert run.code != 0
    assert "this node serves stack one, group main" in run.output
    assert "`./fleet switch one two`" in run.output
    assert operator.project.ask("test-1") == RIGHT
    assert operator.project.ask("test-3") == RIGHT
    assert operator.holders() == {"test-1": "one", "test-2": "one", "test-3": "two", "test-4": None}
    operator.project.write("three", cheap_deployment("test-3", "test-2"))
    with pytest.raises(OperationError, match="test-2 is held by one, group main"):
        operator.switch("two", "three")


def test_a_target_whose_engine_ends_leaves_what_served_serving_again(operator: Operator) -> None:
    operator.up("one", "test-1", "test-2")
    broken = cheap_deployment("test-2", "test-3") | {"environment": {"CHEAP_FAULT": "die-at-start"}}
    operator.project.write("broken", broken)
    # What is not deployed yet does not come back with the way back.
    operator.project.write("one", cheap_deployment("test-1", "test-2") | {"port": 8001})
    result = operator.switch("one", "broken")
    assert (result.outcome, result.serving, result.down) == ("restored", ("one",), {})
    assert "ValueError: the head could not start" in (result.why or "")
    assert operator.project.ask("test-1") == RIGHT
    assert operator.holders() == {"test-1": "one", "test-2": "one", "test-3": None, "test-4": None}
    assert [operator.is_active(stack) for stack in ("one", "broken")] == [True, False]


def test_a_node_that_dies_during_the_switch_is_given_up_and_what_served_serves_again(operator: Operator) -> None:
    operator.up("one", "test-1", "test-2")
    slow = {"environment": {"CHEAP_FAULT": "slow-start"}}
    operator.project.write("wide", cheap_deployment("test-1", "test-3") | slow)
    plan = operator.plan("one", "wide")
    brought = check(plan, operator.controller)
    engine = existing_engine()
    assert engine is not None
    killed: list[str] = []

    def report(line: str) -> None:
        operator.lines.append(line)
        if "wide |" in line and "main-ready creating" in line and not killed:
            killed.append("test-3")
            engine.docker("pause", container_name(FABRIC, "test-3"), what="pause a node")

    try:
        result = carry_out(plan, brought, Controller(operator.project.variables, report, operator.project.folder))
    finally:
        if killed:
            engine.docker("unpause", container_name(FABRIC, "test-3"), what="let a node go on")
    assert (result.outcome, result.serving, result.down) == ("restored", ("one",), {})
    assert [(one.node, one.containers) for one in result.given_up] == [("test-3", ("gb10-wide-main-rank1",))]
    assert operator.project.ask("test-1") == RIGHT

    # The node is back: what it still has is shown as left, and can be cleared.
    found = looked_at(operator.project.cluster, operator.views())["test-3"]
    assert (found.state, found.claim and found.claim["stack"]) == ("left", "wide")
    clear(operator.project.cluster, "test-3", found)
    assert operator.project.containers("test-3") == []
    assert operator.holders()["test-3"] is None


def test_a_destroy_ends_without_a_dead_node_that_was_given_up(operator: Operator) -> None:
    operator.up("one", "test-1", "test-2")
    with paused("test-2"):
        given = give_up("one", ["test-2"], operator.project.variables, operator.project.folder)
        run = operator.project.destroy("one")
        assert run.code == 0, run.output
    assert "gb10-one-main-rank1" in str(given[0])
    assert operator.project.containers("test-1") == []
    assert "claim.json" not in operator.project.on_node("test-1", f"ls {STORAGE}")
    found = looked_at(operator.project.cluster, {"one": StackView(machines=frozenset())})
    assert (found["test-1"].state, found["test-2"].state) == ("free", "left")
    clear(operator.project.cluster, "test-2", found["test-2"])


MOMENTS = {
    "while-checked": "preflight on",
    "while-parked": "park one",
    "between": "bring two up",
    "while-ranks-are-made": "Container main-test-3-rank1 creat",
    "while-it-starts": "main-ready creating",
}
"""A line that a switch reports, by what is under way then."""


@pytest.mark.parametrize("words", MOMENTS.values(), ids=MOMENTS.keys())
def test_a_killed_switch_is_run_again(operator: Operator, words: str) -> None:
    operator.up("one", "test-1", "test-2")
    operator.project.write("two", cheap_deployment("test-2", "test-3"))
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "switch_process.py"), str(operator.project.folder), "one", "two"],
        env={**operator.project.variables, "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if words in line:
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert words in seen[-1], "".join(seen)

    again = operator.switch("one", "two")
    assert again.outcome == "done", "\n".join(operator.lines)
    assert operator.project.ask("test-2") == RIGHT
    assert operator.holders() == {"test-1": None, "test-2": "two", "test-3": "two", "test-4": None}
    assert {node: names for node, names in operator.containers().items() if names} == {
        "test-2": ["gb10-two-main-rank0"],
        "test-3": ["gb10-two-main-rank1"],
    }
    assert [operator.is_active(stack) for stack in ("one", "two")] == [False, True]
