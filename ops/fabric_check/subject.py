"""What is checked: the nodes of a cluster, or of a stack with its groups and image."""

from dataclasses import dataclass
from typing import Any

from ops import stacks
from ops.errors import OperationError
from spec.cluster import Cluster
from spec.connection import Connection, connection_to
from spec.release import GroupPlan, Release


@dataclass(frozen=True)
class CheckedNode:
    """A node and the rails that are checked.

    Attributes:
        name: of the node.
        connection: how to reach it.
        fabric: as `runtime.fabric` reads it: `kind`, `rails` (each `address`, `interface`, `hca`).
    """

    name: str
    connection: Connection
    fabric: dict[str, Any]

    @property
    def addresses(self) -> list[str]:
        """Of the rails, rail 0 first."""
        return [rail["address"] for rail in self.fabric["rails"]]


@dataclass(frozen=True)
class Subject:
    """What is checked.

    Attributes:
        name: of the cluster or the stack.
        storage_folder: on every node.
        nodes: in the order of the cluster or the groups.
        release: of a stack; none for a cluster, which has no image to run collectives in.
        gpus: of each node.
    """

    name: str
    storage_folder: str
    nodes: tuple[CheckedNode, ...]
    release: Release | None
    gpus: int

    def group_nodes(self, group: GroupPlan) -> list[CheckedNode]:
        """Returns the nodes of a group in the order of its ranks."""
        by_name = {node.name: node for node in self.nodes}
        return [by_name[rank.node] for rank in group.ranks]


def find_subject(name: str) -> Subject:
    """Looks up a stack or a cluster.

    Raises:
        OperationError: there is neither.
    """
    if name in stacks.stacks():
        situation, release = stacks.situation_of(name), stacks.planned(name)
        fabric = situation.config.fabric
        rails = fabric.rails
        names = [rank.node for group in release.groups for rank in group.ranks]
        cluster = situation.cluster
        return Subject(
            name,
            release.storage_folder,
            tuple(_node(cluster, node, fabric.kind, rails) for node in names),
            release,
            situation.hardware.gpus,
        )
    if not (stacks.CATALOG.folder / "clusters" / f"{name}.yaml").is_file():
        raise OperationError(
            f"{name} is neither a stack ({', '.join(stacks.stacks())}) nor a cluster of catalog/clusters"
        )
    cluster = stacks.CATALOG.cluster(name)
    return Subject(
        name,
        cluster.storage_folder,
        tuple(
            _node(cluster, node, _kind(cluster, node), range(len(cluster.nodes[node].rails))) for node in cluster.nodes
        ),
        None,
        stacks.CATALOG.hardware(cluster.hardware).gpus,
    )


def _kind(cluster: Cluster, node: str) -> str:
    if cluster.virtual_fabric:
        return "virtual"
    return "roce" if all(rail.hca for rail in cluster.nodes[node].rails) else "ethernet"


def _node(cluster: Cluster, name: str, kind: str, rails: Any) -> CheckedNode:
    described = cluster.nodes[name]
    return CheckedNode(
        name,
        connection_to(cluster, name),
        {"kind": kind, "rails": [described.rails[position].model_dump(mode="json") for position in rails]},
    )
