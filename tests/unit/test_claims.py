"""Claims: what one on a node means, and all nodes of a group or none."""

import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops import claims as controller
from ops.claims import Holding, free_all, take_all
from ops.errors import OperationError
from ops.remote import NodeError
from runtime.node import claims
from runtime.node.errors import NodeTaskError
from spec.claims import RankContainer, StackView, judge_claim
from spec.connection import Connection

MACHINE = "198.51.100.1:22"
HERE, GONE = StackView(machines=frozenset({MACHINE})), StackView(machines=frozenset())
CLAIM = {"stack": "one", "group": "main", "generation": None, "since": "2026-11-30T17:00:00Z", "by": "ann@desk"}


def container(stack: str) -> RankContainer:
    return RankContainer(name=f"gb10-{stack}-main-rank0", stack=stack, group="main", state="running")


@pytest.mark.parametrize(
    ("claim", "containers", "stacks", "state"),
    [
        (None, (), {}, "free"),
        (CLAIM, (), {"one": HERE}, "held"),
        (CLAIM, (container("one"),), {"one": HERE}, "held"),
        (CLAIM, (), {}, "stale"),
        (CLAIM, (), {"one": GONE}, "stale"),
        (CLAIM, (container("one"),), {"one": GONE}, "left"),
        (None, (container("one"),), {"one": GONE}, "left"),
        # Another controller's: its backend is not ours, but its ranks are there.
        (CLAIM, (container("one"),), {}, "held"),
        (None, (container("one"),), {}, "held"),
    ],
)
def test_a_claim_is_cleared_only_if_neither_a_container_nor_a_stack_stands_behind_it(
    claim: dict[str, Any] | None, containers: tuple[RankContainer, ...], stacks: dict[str, StackView], state: str
) -> None:
    assert judge_claim(claim, containers, MACHINE, stacks).state == state


@given(
    st.none() | st.sampled_from(["one", "two"]),
    st.sets(st.sampled_from(["one", "two"])),
    st.dictionaries(st.sampled_from(["one", "two"]), st.sampled_from([HERE, GONE])),
)
def test_what_may_be_removed_is_in_no_state_and_of_a_known_stack(
    holder: str | None, running: set[str], stacks: dict[str, StackView]
) -> None:
    claim = {**CLAIM, "stack": holder} if holder else None
    found = judge_claim(claim, tuple(container(stack) for stack in sorted(running)), MACHINE, stacks)
    if found.state in ("stale", "left"):
        assert all(stacks[one.stack] == GONE for one in found.containers)
        assert holder is None or stacks.get(holder) != HERE


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Holding]:
    """Four nodes that are folders of this machine; one whose folder is `dead` does not answer."""

    def run(connection: Connection, storage_folder: str, verb: str, request: dict[str, Any], **_: Any) -> Any:
        if storage_folder.endswith("dead"):
            raise NodeError(f"{connection.node} does not answer ssh within 5 s")
        try:
            return {"claim": claims.take, "release-claim": claims.release}[verb](request)
        except NodeTaskError as error:
            raise NodeError(f"{connection.node}: {error}") from None

    monkeypatch.setattr(controller, "run_on_node", run)
    return [holding(tmp_path, f"node-{number}") for number in range(4)]


def holding(folder: Path, name: str) -> Holding:
    connection = Connection(
        node=name,
        address=name,
        port=22,
        user="root",
        host_key="ssh-ed25519 AAAA",
        identity_file=None,
        connect_timeout_seconds=5,
    )
    return Holding(connection, str(folder / name))


def holders(nodes: list[Holding]) -> list[str | None]:
    found = [claims.holder({"storage_folder": one.storage_folder}) for one in nodes]
    return [f"{claim['stack']}/{claim['group']}" if claim else None for claim in found]


def test_all_nodes_are_taken_or_none(nodes: list[Holding]) -> None:
    take_all([nodes[2]], "other", "main")
    with pytest.raises(OperationError, match=r"takes all its nodes or none(.|\n)*node-2: this node serves stack other"):
        take_all(nodes, "one", "main")
    assert holders(nodes) == [None, None, "other/main", None]
    free_all([nodes[2]], "other", "main", print)
    take_all(nodes, "one", "main")
    assert holders(nodes) == ["one/main"] * 4


def test_what_another_group_of_the_stack_held_goes_back_to_it(nodes: list[Holding], tmp_path: Path) -> None:
    take_all(nodes[:2], "one", "a")
    with pytest.raises(OperationError, match="does not answer ssh"):
        take_all([*nodes, holding(tmp_path, "dead")], "one", "b")
    assert holders(nodes) == ["one/a", "one/a", None, None]


def test_freeing_goes_on_without_a_dead_node_and_says_so(nodes: list[Holding], tmp_path: Path) -> None:
    take_all(nodes, "one", "main")
    said: list[str] = []
    free_all([*nodes, holding(tmp_path, "dead")], "one", "main", said.append)
    assert holders(nodes) == [None] * 4
    assert len(said) == 1
    assert "dead: a claim of one, group main may be left there" in said[0]


def test_of_two_groups_that_want_the_same_nodes_never_both_hold_some(nodes: list[Holding]) -> None:
    for _ in range(20):
        outcomes: dict[str, str] = {}

        def take(stack: str, outcomes: dict[str, str] = outcomes) -> None:
            try:
                take_all(nodes, stack, "main")
                outcomes[stack] = "took"
            except OperationError:
                outcomes[stack] = "refused"

        threads = [threading.Thread(target=take, args=(stack,)) for stack in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        winners = [stack for stack, outcome in outcomes.items() if outcome == "took"]
        assert holders(nodes) == ([f"{winners[0]}/main"] * 4 if winners else [None] * 4)
        for stack in winners:
            free_all(nodes, stack, "main", print)


def test_a_claim_keeps_its_beginning_and_gets_the_generation(tmp_path: Path) -> None:
    request = {"storage_folder": str(tmp_path), "stack": "one", "group": "main", "by": "ann@desk"}
    claims.take(request)
    first = claims.holder(request)
    claims.note_generation({**request, "generation": "g1", "by": "bob@desk"})
    assert first is not None
    assert claims.holder(request) == {**first, "generation": "g1"}
    claims.take(request)
    assert claims.holder(request) == {**first, "generation": "g1"}
    with pytest.raises(NodeTaskError, match="serves stack one"):
        claims.note_generation({**request, "stack": "two", "generation": "g2"})


def test_a_claim_that_changed_since_it_was_looked_at_is_not_cleared(tmp_path: Path) -> None:
    request = {"storage_folder": str(tmp_path), "stack": "one", "group": "main", "by": "ann@desk"}
    claims.take(request)
    seen = claims.holder(request)
    claims.note_generation({**request, "generation": "g1"})
    with pytest.raises(NodeTaskError, match="has changed meanwhile"):
        claims.clear({"storage_folder": str(tmp_path), "claim": seen, "containers": []})
    claims.clear({"storage_folder": str(tmp_path), "claim": claims.holder(request), "containers": []})
    assert claims.holder(request) is None


def test_what_the_leaving_stacks_hold_counts_as_free(tmp_path: Path) -> None:
    request = {"storage_folder": str(tmp_path), "stack": "one", "group": "main", "by": "ann@desk"}
    claims.take(request)
    claims.refuse_other_stack({**request, "stack": "two", "leaving": ["one"]})
    with pytest.raises(NodeTaskError, match=r"`./fleet switch one two` hands it over"):
        claims.refuse_other_stack({**request, "stack": "two", "leaving": ["three"]})


@pytest.mark.parametrize(
    ("rows", "refused"),
    [
        ("gb10-one-main-rank0\tone\tmain\trunning", False),
        ("gb10-one-pair-rank0\tone\tpair\trunning", True),
        ("gb10-one-pair-rank0\tone\tpair\texited", False),
        ("gb10-two-pair-rank0\ttwo\tpair\trunning", False),
        ("gb10-one-router\tone\t\trunning", False),
        ("", False),
    ],
    ids=["own-group", "other-group", "ended", "other-stack", "router", "nothing"],
)
def test_a_node_changes_groups_within_a_stack_only_once_it_is_free(
    monkeypatch: pytest.MonkeyPatch, rows: str, refused: bool
) -> None:
    monkeypatch.setattr(claims, "docker", lambda *_: subprocess.CompletedProcess([], 0, rows, ""))
    request = {"stack": "one", "group": "main"}
    if refused:
        with pytest.raises(NodeTaskError, match=r"group pair of this stack.*`active: false` in Pulumi\.one\.yaml"):
            claims.refuse_other_group(request)
    else:
        claims.refuse_other_group(request)
