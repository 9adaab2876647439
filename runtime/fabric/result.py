"""What was found of a node's fabric, and what is said when it was not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One reason why the engine may not start on this fabric.

    Attributes:
        code: names the rule, the same in every message of its kind.
        text: what was found, with node-side names and values.
        way_out: what to do about it.
        may_pass: whether it can be cured by waiting, as a link that comes up late is.
    """

    code: str
    text: str
    way_out: str
    may_pass: bool = False

    def __str__(self) -> str:
        return f"{self.text} [{self.code}]\n    Way out: {self.way_out}"


class FabricError(Exception):
    """The fabric is not what the deployment asks for; the text lists every problem, then what the node has."""

    def __init__(self, problems: Sequence[Problem], table: str) -> None:
        super().__init__("\n".join([*map(str, problems), "What this node has:", table]))
        self.problems = tuple(problems)
        self.table = table


@dataclass(frozen=True)
class ResolvedRail:
    """One rail as the node has it now.

    Attributes:
        address, interface: of its sockets.
        mtu_bytes: of the interface.
        hca, port: its RDMA device; none where the fabric has none.
        gid_index: of the RoCE v2 entry for the address; the same on every rail of a rank.
    """

    address: str
    interface: str
    mtu_bytes: int
    hca: str | None = None
    port: int | None = None
    gid_index: int | None = None


@dataclass(frozen=True)
class ResolvedFabric:
    """All that an engine must be told of its node's fabric.

    Attributes:
        kind: of the fabric.
        rails: in the order of the request.
        removed: variables that the image bakes in and that the engine must not see: their values.
        notices: one line for each of those, with the reason.
        table: what the node has, for people.
    """

    kind: str
    rails: tuple[ResolvedRail, ...]
    removed: Mapping[str, str]
    notices: tuple[str, ...]
    table: str

    @property
    def gid_index(self) -> int | None:
        """The one index of all rails, which is all that NCCL can be told; none without RDMA devices."""
        return self.rails[0].gid_index

    @property
    def environment(self) -> dict[str, str]:
        """The variables that follow from what was found; each has its reason in spec/nccl.py."""
        first = self.rails[0]
        sockets = self.rails if self.kind == "ethernet" else self.rails[:1]
        found = {
            "VLLM_HOST_IP": first.address,
            "GLOO_SOCKET_IFNAME": first.interface,
            "TP_SOCKET_IFNAME": first.interface,
            "NCCL_SOCKET_IFNAME": "=" + ",".join(rail.interface for rail in sockets),
        }
        if self.gid_index is None:
            return found
        return {
            **found,
            "NCCL_IB_HCA": "=" + ",".join(f"{rail.hca}:{rail.port}" for rail in self.rails),
            "NCCL_IB_GID_INDEX": str(self.gid_index),
            "B12X_ROCE_GID_INDEX": str(self.gid_index),
        }

    def to_plain(self) -> dict[str, Any]:
        """Returns it as JSON data."""
        return {
            "kind": self.kind,
            "rails": [dict(vars(rail)) for rail in self.rails],
            "removed": dict(self.removed),
            "notices": list(self.notices),
            "table": self.table,
        }

    @staticmethod
    def from_plain(data: Mapping[str, Any]) -> "ResolvedFabric":
        """Reads what `to_plain` wrote, as a peer sends it."""
        rails = tuple(ResolvedRail(**rail) for rail in data["rails"])
        return ResolvedFabric(data["kind"], rails, data["removed"], tuple(data["notices"]), data["table"])


def mtu_problems(rails_by_node: Mapping[str, Sequence[ResolvedRail]]) -> list[str]:
    """Returns on which rails the nodes' MTUs differ: full packets are then lost, and RDMA gives up retrying.

    A firmware reboot has been seen to leave one end at 1500 (facts/peers.md 3.1, 32).
    """
    found = []
    for position in range(max(map(len, rails_by_node.values()), default=0)):
        at_rail = {node: rails[position] for node, rails in rails_by_node.items() if position < len(rails)}
        if len({rail.mtu_bytes for rail in at_rail.values()}) > 1:
            shown = ", ".join(f"{node} {rail.interface} {rail.mtu_bytes}" for node, rail in at_rail.items())
            most = max(rail.mtu_bytes for rail in at_rail.values())
            found.append(
                f"rail {position}: the MTU differs between the nodes ({shown}) [mtu-differs-between-nodes]\n"
                f"    Way out: `ip link set dev INTERFACE mtu {most}` on the nodes with less, and in their network "
                "profile so that it lasts"
            )
    return found
