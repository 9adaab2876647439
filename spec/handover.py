"""From deployments that run to one that shall run: which nodes are freed, kept and taken.

A node is known by where its controller logs in, as two clusters may name the same machine otherwise. Only nodes that
run ranks count: building an image takes no node.
"""

from collections.abc import Sequence
from typing import Literal

from spec.base import Strict
from spec.release import GroupPlan, NodePlan, RankPlan, Release


class Occupant(Strict):
    """A rank on a node.

    Attributes:
        stack, group, rank: which one.
        container: its name.
    """

    stack: str
    group: str
    rank: int
    container: str


class NodeHandover(Strict):
    """One node of a handover.

    Attributes:
        node: its name in the receiving deployment, or in the one that gives it away.
        machine: where its controller logs in.
        fate: `freed` runs nothing afterwards, `kept` ran ranks and runs others, `taken` ran none of these.
        leaving: ranks that are there now.
        arriving: the rank that comes.
    """

    node: str
    machine: str
    fate: Literal["freed", "kept", "taken"]
    leaving: tuple[Occupant, ...]
    arriving: Occupant | None


class Handover(Strict):
    """All nodes that run ranks before or after, those of the receiving deployment first."""

    nodes: tuple[NodeHandover, ...]

    @property
    def freed(self) -> tuple[str, ...]:
        """Names of the nodes that run nothing afterwards."""
        return self._with("freed")

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the nodes that change hands."""
        return self._with("kept")

    @property
    def taken(self) -> tuple[str, ...]:
        """Names of the nodes that the receiving deployment must find free."""
        return self._with("taken")

    def _with(self, fate: str) -> tuple[str, ...]:
        return tuple(one.node for one in self.nodes if one.fate == fate)


def hand_over(giving: Sequence[Release], receiving: Release) -> Handover:
    """Tells what becomes of every node when some deployments make room for another.

    Args:
        giving: what runs and will be stopped; the receiving stack's own running Release belongs to it, too.
        receiving: what shall run.
    """
    leaving: dict[str, list[tuple[str, Occupant]]] = {}
    for release in giving:
        for node, occupant in occupants(release):
            leaving.setdefault(machine_of(release.nodes[node]), []).append((node, occupant))
    found = []
    for node, occupant in occupants(receiving):
        machine = machine_of(receiving.nodes[node])
        old = tuple(other for _, other in leaving.pop(machine, ()))
        fate = "kept" if old else "taken"
        found.append(NodeHandover(node=node, machine=machine, fate=fate, leaving=old, arriving=occupant))
    for machine, old_ones in leaving.items():
        old = tuple(other for _, other in old_ones)
        found.append(
            NodeHandover(node=old_ones[0][0], machine=machine, fate="freed", leaving=old, arriving=None),
        )
    return Handover(nodes=tuple(found))


def machine_of(node: NodePlan) -> str:
    """Returns what tells machines apart, whatever a cluster calls them."""
    return f"{node.connection.address}:{node.connection.port}"


def occupants(release: Release) -> list[tuple[str, Occupant]]:
    """Returns every rank of a Release with the name of its node, in the order of the nodes; a parked one has none."""
    found = {
        rank.node: Occupant(
            stack=release.stack,
            group=group.name,
            rank=rank.rank,
            container=rank.container,
        )
        for group in release.running_groups
        for rank in group.ranks
    }
    return [(node, found[node]) for node in release.rank_nodes if node in found]


def held_ports(group: GroupPlan, rank: RankPlan) -> tuple[int, ...]:
    """Returns the ports on which a rank and its supervisor listen."""
    supervisor = rank.supervision.peers[rank.rank].port
    if not rank.is_head:
        return (supervisor,)
    front = (rank.supervision.front.port,) if rank.supervision.front else ()
    return (supervisor, *((group.port,) if group.serves else ()), group.master_port, *front)
