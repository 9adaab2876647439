"""Where stacks stand in each other's way: a node belongs to one deployment."""

from collections.abc import Sequence

from spec.base import Strict
from spec.handover import machine_of, occupants
from spec.release import Release


class Claim(Strict):
    """A node that a stack holds, as the stack's state says.

    Attributes:
        stack, group: who holds it.
        node: its name there.
        machine: where its controller logs in.
    """

    stack: str
    group: str
    node: str
    machine: str


class Conflict(Strict):
    """Nodes that more than one stack wants, or that another one holds.

    Attributes:
        nodes: their names in the stack that is refused.
        stacks: the one that is refused, then the one in its way.
        text: what is wrong, and the way out.
    """

    nodes: tuple[str, ...]
    stacks: tuple[str, str]
    text: str


class _Place(Strict):
    stack: str
    group: str


def find_conflicts(planned: Sequence[Release], claims: Sequence[Claim]) -> tuple[Conflict, ...]:
    """Returns where one of these stacks could not be deployed beside the others, or in place of what it runs now.

    Args:
        planned: Releases of different stacks that are to run at the same time.
        claims: what all stacks hold now. A stack among `planned` that gives its node up is not in the way.
    """
    reviewed = {release.stack for release in planned}
    held = {one.machine: _Place(stack=one.stack, group=one.group) for one in claims if one.stack not in reviewed}
    own = {(one.stack, one.machine): one.group for one in claims}
    wanted: dict[str, _Place] = {}
    regrouped: dict[tuple[str, str, str], list[str]] = {}
    both: dict[tuple[str, str, str, str], list[str]] = {}
    taken: dict[tuple[str, str, str, str], list[str]] = {}
    for release in planned:
        for node, occupant in occupants(release):
            machine = machine_of(release.nodes[node])
            for others, found in ((wanted, both), (held, taken)):
                if other := others.get(machine):
                    found.setdefault((release.stack, occupant.group, other.stack, other.group), []).append(node)
            now = own.get((release.stack, machine), occupant.group)
            if now != occupant.group:
                regrouped.setdefault((release.stack, occupant.group, now), []).append(node)
            wanted.setdefault(machine, _Place(stack=release.stack, group=occupant.group))
    return (
        *(_both_want(nodes, *key) for key, nodes in both.items()),
        *(_held(nodes, *key) for key, nodes in taken.items()),
        *(_regrouped(nodes, *key) for key, nodes in regrouped.items()),
    )


def _both_want(nodes: list[str], stack: str, group: str, other: str, other_group: str) -> Conflict:
    return Conflict(
        nodes=tuple(nodes),
        stacks=(stack, other),
        text=f"{', '.join(nodes)}: wanted by {stack} (group {group}) and by {other} (group {other_group}), and a node "
        f"belongs to one deployment. Way out: other nodes for one of them, or first one, then "
        f"`./fleet switch {other} {stack}`",
    )


def _held(nodes: list[str], stack: str, group: str, other: str, other_group: str) -> Conflict:
    return Conflict(
        nodes=tuple(nodes),
        stacks=(stack, other),
        text=f"{', '.join(nodes)}: held by {other} (group {other_group}), so `up` of {stack} (group {group}) would be "
        f"refused. Way out: `./fleet switch {other} {stack}`, or other nodes",
    )


def _regrouped(nodes: list[str], stack: str, group: str, now: str) -> Conflict:
    return Conflict(
        nodes=tuple(nodes),
        stacks=(stack, stack),
        text=f"{', '.join(nodes)}: run group {now} of {stack} now, so `up` would refuse to start group {group} there: "
        "within one stack a node changes groups only once it is free. Way out: deploy it with `active: false` first",
    )
