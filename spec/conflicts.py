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
    """A node that more than one stack wants, or that another one holds.

    Attributes:
        node: its name in the stack that is refused.
        stacks: the one that is refused, then the one in its way.
        text: what is wrong, and the way out.
    """

    node: str
    stacks: tuple[str, str]
    text: str


def find_conflicts(planned: Sequence[Release], claims: Sequence[Claim]) -> tuple[Conflict, ...]:
    """Returns every node on which one of these stacks could not be deployed beside the others.

    Args:
        planned: Releases of different stacks that are to run at the same time.
        claims: what all stacks hold now. A stack among `planned` that gives its node up is not in the way.
    """
    wanted: dict[str, tuple[str, str]] = {}
    found = []
    for release in planned:
        for node, occupant in occupants(release):
            machine = machine_of(release.nodes[node])
            if machine in wanted:
                found.append(_both_want(node, release.stack, occupant.group, *wanted[machine]))
            wanted.setdefault(machine, (release.stack, occupant.group))
    reviewed = {release.stack for release in planned}
    for release in planned:
        machines = {machine_of(release.nodes[node]): node for node in release.rank_nodes}
        found += [
            _held(machines[claim.machine], release.stack, claim)
            for claim in claims
            if claim.machine in machines and claim.stack not in reviewed
        ]
    return tuple(found)


def _both_want(node: str, stack: str, group: str, other: str, other_group: str) -> Conflict:
    return Conflict(
        node=node,
        stacks=(stack, other),
        text=f"{node} is wanted by {stack} (group {group}) and by {other} (group {other_group}), and a node belongs to "
        f"one deployment. Way out: other nodes for one of them, or first one, then `./fleet switch {other} {stack}`",
    )


def _held(node: str, stack: str, claim: Claim) -> Conflict:
    return Conflict(
        node=node,
        stacks=(stack, claim.stack),
        text=f"{node} is held by {claim.stack} (group {claim.group}), so `up` of {stack} would be refused. Way out: "
        f"`./fleet switch {claim.stack} {stack}`, or other nodes",
    )
