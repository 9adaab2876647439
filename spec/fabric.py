"""The variables that make a rank talk over the fabric that was asked for, and over nothing else."""

import ipaddress
from collections.abc import Iterator
from typing import Literal

from pydantic import Field, field_validator

from spec import nccl
from spec.base import Strict
from spec.cluster import Node
from spec.errors import Problem
from spec.nccl import NcclSettings

FabricKind = Literal["roce", "ethernet", "nvlink", "virtual"]


class Fabric(Strict):
    """How the ranks of a deployment talk to each other.

    Attributes:
        kind: `roce` (RDMA over the rails), `ethernet` (sockets over the rails), `nvlink` (one host), or `virtual` (no
            accelerator: `./fleet lab`).
        rails: the rails in use by their place in a node's `rails`; sockets take the first.
        nccl: what the deployment chooses of NCCL.
    """

    kind: FabricKind
    rails: tuple[int, ...] = Field(default=(0,), min_length=1)
    nccl: NcclSettings = NcclSettings()

    @field_validator("rails")
    @classmethod
    def _rails_differ(cls, rails: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(rails)) != len(rails) or min(rails) < 0:
            raise ValueError(f"rails {list(rails)} are places in a node's list, each once, from 0")
        return rails


def fabric_environment(node: Node, fabric: Fabric | None = None) -> dict[str, str]:
    """Returns the network variables of a rank on this node.

    NCCL_IB_GID_INDEX is not among them: it is found on the node each time a rank starts.

    Args:
        node: where the rank runs.
        fabric: what the deployment chose; none is RoCE on rail 0 where that rail has an RDMA device, else the virtual
            fabric. Plain Ethernet is never a fallback, so it has to be asked for.

    Raises:
        ValueError: the node has not what the fabric needs, which `fabric_problems` reports for people.
    """
    chosen = fabric or Fabric(kind="roce" if node.rails[0].hca else "virtual")
    problems = fabric_problems(node, chosen, "(cluster)", "(node)")
    if problems:
        raise ValueError("\n".join(map(str, problems)))
    rails = nccl.rails_of(node, chosen.rails)
    match chosen.kind:
        case "roce":
            return nccl.roce_variables(rails, chosen.nccl)
        case "ethernet":
            return nccl.ethernet_variables(rails, chosen.nccl)
        case "nvlink":
            return nccl.nvlink_variables(rails, chosen.nccl)
        case "virtual":
            return nccl.common_variables(rails)


def fabric_problems(node: Node, fabric: Fabric, file: str, key: str) -> list[Problem]:
    """Returns what the node lacks for the fabric.

    Args:
        node: one of the deployment's nodes.
        fabric: what the deployment chose.
        file: where the node is described, for messages.
        key: of the node in that file.
    """
    return [
        Problem(file, f"{key}/rails/{position}", shown, rule, way_out)
        for position in fabric.rails
        for shown, rule, way_out in _rules_broken_by_rail(node, position, fabric.kind)
    ]


def settings_problems(fabric: Fabric, file: str, key: str) -> list[Problem]:
    """Returns which choices of NCCL have no effect on a fabric of this kind.

    Args:
        fabric: what the deployment chose.
        file: where it chose it, for messages.
        key: of the fabric in that file.
    """
    return [
        Problem(
            file,
            f"{key}/nccl/{name}",
            getattr(fabric.nccl, name),
            f"nothing reads {name} on a fabric of kind {fabric.kind}",
            "remove the key, or choose another kind",
        )
        for name in NcclSettings.model_fields
        if name in fabric.nccl.model_fields_set and name in _UNUSED_SETTINGS[fabric.kind]
    ]


_UNUSED_SETTINGS: dict[FabricKind, frozenset[str]] = {
    "roce": frozenset(),
    "ethernet": nccl.RDMA_SETTINGS,
    "nvlink": nccl.RDMA_SETTINGS | {"cross_nic"},
    "virtual": frozenset(NcclSettings.model_fields),
}


def _rules_broken_by_rail(node: Node, position: int, kind: FabricKind) -> Iterator[tuple[str | None, str, str]]:
    if position >= len(node.rails):
        yield (
            None,
            f"the deployment uses rail {position}, and the node has {len(node.rails)}",
            "add the rail to the node, or use fewer rails",
        )
    elif ipaddress.ip_address(node.rails[position].address).version != 4:
        yield (
            node.rails[position].address,
            "sockets and GIDs of the fabric are IPv4 (NCCL_SOCKET_FAMILY and NCCL_IB_ADDR_FAMILY are AF_INET)",
            "give the rail's IPv4 address",
        )
    elif kind == "roce" and node.rails[position].hca is None:
        yield (
            node.rails[position].interface,
            "RoCE needs the RDMA device of every rail that it uses",
            "add `hca` to the rail (`rdma link` shows it), or choose the fabric kind ethernet",
        )
