"""Which nodes change hands between deployments, over made-up ones on one set of machines."""

from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ops.places import PROJECT
from ops.stacks import CATALOG, planned
from spec.catalog import read_stack
from spec.handover import hand_over, occupants
from spec.plan import plan_release
from spec.release import Release

LAB: dict[str, Any] = read_stack(PROJECT, "lab")
NODES = ["lab-1", "lab-2", "lab-3", "lab-4"]


SHAPES = [(1, 0), (2, 0), (4, 0), (1, 1), (1, 2), (2, 1), (2, 2)]
"""How many nodes two groups have: the lab's model is served by one, two or four."""


@cache
def _planned(stack: str, groups: tuple[tuple[str, tuple[str, ...]], ...]) -> Release:
    return plan_release(stack, LAB | {"groups": {name: list(nodes) for name, nodes in groups}}, CATALOG)


def on(stack: str, groups: dict[str, list[str]]) -> Release:
    return _planned(stack, tuple((name, tuple(nodes)) for name, nodes in groups.items()))


@st.composite
def deployments(draw: st.DrawFn, stack: str) -> Release:
    """One or two groups on any of the nodes, in any order."""
    nodes = draw(st.permutations(NODES))
    first, second = draw(st.sampled_from(SHAPES))
    groups = {"one": nodes[:first]} | ({"two": nodes[first : first + second]} if second else {})
    return on(stack, groups)


@settings(deadline=None, max_examples=40)
@given(deployments("old"), deployments("new"))
def test_every_node_has_one_fate(old: Release, new: Release) -> None:
    handover = hand_over([old], new)
    before, after = set(old.rank_nodes), set(new.rank_nodes)
    assert set(handover.freed) == before - after
    assert set(handover.kept) == before & after
    assert set(handover.taken) == after - before
    assert len(handover.nodes) == len(before | after)


@settings(deadline=None, max_examples=40)
@given(deployments("old"), deployments("new"))
def test_every_rank_that_goes_and_comes_is_named_once(old: Release, new: Release) -> None:
    nodes = hand_over([old], new).nodes
    assert {one.node: one.leaving[0] for one in nodes if one.leaving} == dict(occupants(old))
    assert {one.node: one.arriving for one in nodes if one.arriving} == dict(occupants(new))


@settings(deadline=None, max_examples=20)
@given(deployments("one"))
def test_a_deployment_that_stays_keeps_all_its_nodes(release: Release) -> None:
    handover = hand_over([release], release)
    assert handover.freed == handover.taken == ()
    assert set(handover.kept) == set(release.rank_nodes)


@settings(deadline=None, max_examples=20)
@given(deployments("old"), deployments("new"))
def test_the_way_back_mirrors_the_way(old: Release, new: Release) -> None:
    there, back = hand_over([old], new), hand_over([new], old)
    assert set(there.freed) == set(back.taken)
    assert set(there.taken) == set(back.freed)
    assert set(there.kept) == set(back.kept)


def test_two_pairs_make_room_for_one_of_four() -> None:
    a, b = on("a", {"main": NODES[:2]}), on("b", {"main": NODES[2:]})
    handover = hand_over([a, b], on("c", {"main": NODES}))
    assert handover.kept == tuple(NODES)
    assert [one.leaving[0].stack for one in handover.nodes] == ["a", "a", "b", "b"]
    assert [one.arriving.stack for one in handover.nodes if one.arriving] == ["c"] * 4


def test_a_machine_is_the_same_whatever_its_cluster_calls_it() -> None:
    old = planned("lab")
    nodes = {"box": old.nodes["lab-1"]}
    rank = old.groups[0].ranks[0].model_copy(update={"node": "box"})
    group = old.groups[0].model_copy(update={"ranks": (rank,)})
    new = old.model_copy(update={"stack": "other", "nodes": nodes, "groups": (group,)})
    handover = hand_over([old], new)
    assert (handover.kept, handover.freed, handover.taken) == (("box",), ("lab-2",), ())
