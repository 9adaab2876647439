"""NCCL's environment, typed: what a deployment may choose, and every variable with its reason and its source.

The block is the first source's (seed 000, "NCCL over RoCE: the environment that works") with the variables that peers
found missing (facts/peers.md section 6). Every variable that an image may bake in is set explicitly: what is left to
NCCL has NCCL 2.30.7's own default written out. Where no value means "you choose", the variable stays unset, and the
rank's supervisor removes what the image has of it (`FABRIC_PREFIXES`) before it starts the engine.

NCCL_IB_GID_INDEX is never part of a Release: the index belongs to a node and a boot (seed 002), so it is found on the
node each time a rank starts.
"""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from pydantic import Field, model_validator

from spec.base import Strict
from spec.cluster import Node, Rail
from spec.errors import Problem

HCA_PORT = 1
"""Each function of a ConnectX-7 is an RDMA device of its own with one port (facts/seed-repos.md 5.1)."""


class NcclSettings(Strict):
    """What a deployment may choose of NCCL; the defaults are those of the first source, else NCCL 2.30.7's own.

    Attributes:
        algorithm: of the collectives; none lets NCCL choose. Ring is far ahead of Tree on a healthy fabric (seed 002).
        protocol: of the messages; none lets NCCL choose. Simple was 0.5 to 1.5 % slower (seed 002).
        min_channels, max_channels: channels of a communicator; none lets NCCL choose. 8 was best at TP4 (seed 002).
        debug_level: what NCCL logs; INFO also tells which devices it took.
        debug_subsystems: restricts INFO and TRACE.
        cross_nic: 0 keeps a ring on one rail, 1 lets it cross, 2 lets NCCL choose.
        merge_nics: whether NCCL may take both functions of one card for one device.
        ib_timeout: time before a packet is sent again, 4.096 us x 2^N.
        ib_retry_count: how often, before the connection counts as lost.
        ib_traffic_class, ib_service_level: of the RoCE packets, for switches that tell classes apart.
        ib_queue_pairs: connections between two ranks.
    """

    algorithm: Literal["Ring", "Tree", "NVLS"] | None = None
    protocol: Literal["LL", "LL128", "Simple"] | None = None
    min_channels: int | None = Field(default=None, ge=1, le=64)
    max_channels: int | None = Field(default=None, ge=1, le=64)
    debug_level: Literal["VERSION", "WARN", "INFO", "TRACE"] = "WARN"
    debug_subsystems: tuple[Literal["INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALL"], ...] = ()
    cross_nic: Literal[0, 1, 2] = 0
    merge_nics: bool = False
    ib_timeout: int = Field(default=20, ge=1, le=22)
    ib_retry_count: int = Field(default=7, ge=1, le=7)
    ib_traffic_class: int = Field(default=0, ge=0, le=255)
    ib_service_level: int = Field(default=0, ge=0, le=15)
    ib_queue_pairs: int = Field(default=1, ge=1, le=128)

    @model_validator(mode="after")
    def _channels_are_a_range(self) -> "NcclSettings":
        if self.min_channels and self.max_channels and self.min_channels > self.max_channels:
            raise ValueError(f"min_channels {self.min_channels} is more than max_channels {self.max_channels}")
        return self


RDMA_SETTINGS = frozenset(name for name in NcclSettings.model_fields if name.startswith("ib_")) | {"merge_nics"}
"""Settings that only RDMA devices read."""


@dataclass(frozen=True)
class Variable:
    """Why a variable is set, and who says so."""

    why: str
    source: str


_SEED = "seed 000"
_NCCL = "NCCL 2.30.7"

VARIABLES: Mapping[str, Variable] = MappingProxyType(
    {
        # Where a rank is found. Every library that opens a socket is told one interface.
        "VLLM_HOST_IP": Variable(
            "vLLM's message queue advertises it; else it takes the address of the default route, the Wi-Fi's",
            "facts/vllm-patches.md P12; seed 003 bug 5",
        ),
        "GLOO_SOCKET_IFNAME": Variable("Gloo's groups on the processor; takes an exact name", _SEED),
        "TP_SOCKET_IFNAME": Variable("torch's TensorPipe", _SEED),
        "NCCL_SOCKET_IFNAME": Variable(
            "NCCL's bootstrap, and its data without RDMA; `=` matches whole names, a prefix also other links",
            f"{_SEED}; exact match: facts/seed-repos.md section 6, 11",
        ),
        "NCCL_SOCKET_FAMILY": Variable("a fe80 address cannot be reached from another node", "facts/peers.md 3.1, 29"),
        "UCX_NET_DEVICES": Variable("images bake in an interface that a node may not have", "facts/peers.md section 6"),
        "OMPI_MCA_btl_tcp_if_include": Variable("as UCX_NET_DEVICES, for MPI", "facts/peers.md section 6"),
        "MN_IF_NAME": Variable("as UCX_NET_DEVICES, for the vendor's scripts", "facts/seed-repos.md 3.5"),
        # Which transport.
        "NCCL_NET": Variable(
            "else NCCL falls back to sockets over the LAN in silence, and probes verbs even where they are disabled",
            _SEED,
        ),
        "NCCL_NET_PLUGIN": Variable("no transport plugin that an image brings", "facts/seed-repos.md 1.5, SGLang lane"),
        "NCCL_IB_DISABLE": Variable("must agree with NCCL_NET", _SEED),
        "NCCL_P2P_DISABLE": Variable("NVLink is peer-to-peer", f"{_NCCL}, default"),
        "NCCL_P2P_LEVEL": Variable("peer-to-peer through NVLink alone, so that its absence shows", f"{_NCCL}, manual"),
        "NCCL_SHM_DISABLE": Variable("ranks of one host may share memory", f"{_NCCL}, default"),
        # RDMA devices.
        "NCCL_IB_HCA": Variable(
            "the devices of the rails, each by exact name and port: a list of all hangs where one leads elsewhere",
            f"{_SEED}; exact match and port: facts/seed-repos.md 1.8",
        ),
        "NCCL_IB_ROCE_VERSION_NUM": Variable("RoCE v2 is routed over IP", _SEED),
        "NCCL_IB_ADDR_FAMILY": Variable("IPv4 GIDs", _SEED),
        "NCCL_IB_ADDR_RANGE": Variable("the node's own rail addresses: NCCL compares only this node's GIDs", _SEED),
        "NCCL_IB_MERGE_NICS": Variable("both functions of a card stay two devices", _SEED),
        "NCCL_IB_TIMEOUT": Variable("no source chooses one", f"{_NCCL}, default"),
        "NCCL_IB_RETRY_CNT": Variable("no source chooses one", f"{_NCCL}, default"),
        "NCCL_IB_TC": Variable("no source chooses one", f"{_NCCL}, default"),
        "NCCL_IB_SL": Variable("no source chooses one", f"{_NCCL}, default"),
        "NCCL_IB_QPS_PER_CONNECTION": Variable("no source chooses one", f"{_NCCL}, default"),
        # The machine.
        "NCCL_NVLS_ENABLE": Variable("GB10 has no NVLink switch; where there is one, NCCL uses it if it can", _SEED),
        "NCCL_CUMEM_ENABLE": Variable("off on unified memory; NVLink sharp needs it", _SEED),
        "NCCL_CROSS_NIC": Variable("a ring stays on its rail", _SEED),
        "NCCL_IGNORE_CPU_AFFINITY": Variable("NCCL's threads may run on any core that the container has", _SEED),
        # What is seen of it.
        "NCCL_DEBUG": Variable("warnings at least", _SEED),
        "NCCL_DEBUG_SUBSYS": Variable("only if the stack asks for it", f"{_NCCL}, manual"),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": Variable("a failed collective ends the process instead of hanging", _SEED),
        # Choices of a stack that are unset by default.
        "NCCL_ALGO": Variable("only if the stack asks for it", "seed 002"),
        "NCCL_PROTO": Variable("only if the stack asks for it", "seed 002"),
        "NCCL_MIN_NCHANNELS": Variable("only if the stack asks for it", "seed 002"),
        "NCCL_MAX_NCHANNELS": Variable("only if the stack asks for it; 8 in seed 002", "seed 002"),
    }
)
"""Every variable that a Release may hold for the fabric."""

FABRIC_PREFIXES = ("NCCL_", "GLOO_", "TP_SOCKET_", "UCX_", "OMPI_MCA_btl_")
"""Beginnings of names that belong to the fabric: what an image bakes in of them and a Release does not set, the
supervisor removes before it starts the engine."""

LEFT_UNSET: Mapping[str, str] = MappingProxyType(
    {
        "NCCL_IB_GID_INDEX": "belongs to a node and a boot, and is found on the node each time a rank starts",
        "B12X_ROCE_GID_INDEX": "must follow NCCL_IB_GID_INDEX, which is found on the node each time a rank starts",
    }
)
"""Variables that no Release holds and nobody may set: why."""


def common_variables(rails: Sequence[Rail]) -> dict[str, str]:
    """Returns where a rank is found: all that the virtual fabric needs, where no accelerator is.

    Args:
        rails: the rails that the deployment uses; sockets take the first.
    """
    first = rails[0]
    return {
        "VLLM_HOST_IP": first.address,
        "GLOO_SOCKET_IFNAME": first.interface,
        "TP_SOCKET_IFNAME": first.interface,
        "NCCL_SOCKET_IFNAME": f"={first.interface}",
        "NCCL_SOCKET_FAMILY": "AF_INET",
    }


def roce_variables(rails: Sequence[Rail], settings: NcclSettings) -> dict[str, str]:
    """Returns the variables of a rank whose tensors go over RoCE, on one rail or more; each has its RDMA device."""
    return {
        **common_variables(rails),
        **_accelerated_variables(rails, settings),
        **_between_nodes(settings),
        "NCCL_NET": "IB",
        "NCCL_IB_DISABLE": "0",
        "NCCL_IB_HCA": "=" + ",".join(f"{rail.hca}:{HCA_PORT}" for rail in rails),
        "NCCL_IB_ROCE_VERSION_NUM": "2",
        "NCCL_IB_ADDR_FAMILY": "AF_INET",
        "NCCL_IB_ADDR_RANGE": str(_smallest_network([rail.address for rail in rails])),
        "NCCL_IB_MERGE_NICS": str(int(settings.merge_nics)),
        "NCCL_IB_TIMEOUT": str(settings.ib_timeout),
        "NCCL_IB_RETRY_CNT": str(settings.ib_retry_count),
        "NCCL_IB_TC": str(settings.ib_traffic_class),
        "NCCL_IB_SL": str(settings.ib_service_level),
        "NCCL_IB_QPS_PER_CONNECTION": str(settings.ib_queue_pairs),
    }


def ethernet_variables(rails: Sequence[Rail], settings: NcclSettings) -> dict[str, str]:
    """Returns the variables of a rank whose tensors go over plain Ethernet (seed 003): sockets, on all rails given."""
    return {
        **common_variables(rails),
        **_accelerated_variables(rails, settings),
        **_between_nodes(settings),
        **_SOCKETS,
        "NCCL_SOCKET_IFNAME": "=" + ",".join(rail.interface for rail in rails),
    }


def nvlink_variables(rails: Sequence[Rail], settings: NcclSettings) -> dict[str, str]:
    """Returns the variables of the ranks of one host with NVLink (the first source's H200 reference).

    That source prints no environment for it: these are NCCL's own defaults, written out so that what GB10 images bake
    in does not hold here.
    """
    return {
        **common_variables(rails),
        **_accelerated_variables(rails, settings),
        **_SOCKETS,
        "NCCL_P2P_DISABLE": "0",
        "NCCL_P2P_LEVEL": "NVL",
        "NCCL_SHM_DISABLE": "0",
        "NCCL_NVLS_ENABLE": "2",
        "NCCL_CUMEM_ENABLE": "1",
    }


def environment_problems(environment: Mapping[str, str], file: str, key: str) -> list[Problem]:
    """Returns what is wrong with variables that a person wrote beside those of the fabric.

    Args:
        environment: as it stands in an image's entry or a stack file.
        file: where it stands, for messages.
        key: of the variables in that file.
    """
    return [
        Problem(file, f"{key}/{name}", value, rule, way_out)
        for name, value in environment.items()
        for rule, way_out in _rules_broken_by(name, value)
    ]


def _rules_broken_by(name: str, value: str) -> Iterable[tuple[str, str]]:
    if name in LEFT_UNSET:
        yield f"{name} {LEFT_UNSET[name]}: a pinned index names an empty slot after the next boot", "remove it"
    elif name in VARIABLES or name.startswith(FABRIC_PREFIXES):
        yield f"{name} belongs to the fabric", "choose it under `fabric/nccl` in the stack file, or remove it"
    elif not value:
        yield f"{name} is empty, which is not the same as unset", "give it a value, or remove it"


_SOCKETS = MappingProxyType({"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"})


def _accelerated_variables(rails: Sequence[Rail], settings: NcclSettings) -> dict[str, str]:
    """Returns what every rank with an accelerator has, whatever its fabric."""
    interface = rails[0].interface
    return {
        "UCX_NET_DEVICES": interface,
        "OMPI_MCA_btl_tcp_if_include": interface,
        "MN_IF_NAME": interface,
        "NCCL_NET_PLUGIN": "none",
        "NCCL_IGNORE_CPU_AFFINITY": "1",
        "NCCL_DEBUG": settings.debug_level,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        **_chosen(
            NCCL_DEBUG_SUBSYS=",".join(settings.debug_subsystems),
            NCCL_ALGO=settings.algorithm,
            NCCL_PROTO=settings.protocol,
            NCCL_MIN_NCHANNELS=settings.min_channels,
            NCCL_MAX_NCHANNELS=settings.max_channels,
        ),
    }


def _between_nodes(settings: NcclSettings) -> dict[str, str]:
    """Returns what GB10 nodes have whose ranks meet over a network, RDMA or not."""
    return {
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_CUMEM_ENABLE": "0",
        "NCCL_CROSS_NIC": str(settings.cross_nic),
    }


def _chosen(**variables: str | int | None) -> dict[str, str]:
    return {name: str(value) for name, value in variables.items() if value}


def _smallest_network(addresses: Sequence[str]) -> ipaddress.IPv4Network:
    """Returns the smallest network that holds all the addresses: one address alone is a /32."""
    numbers = [int(ipaddress.IPv4Address(address)) for address in addresses]
    differing_bits = (min(numbers) ^ max(numbers)).bit_length()
    return ipaddress.IPv4Network((min(numbers) >> differing_bits << differing_bits, 32 - differing_bits))


def rails_of(node: Node, positions: Sequence[int]) -> tuple[Rail, ...]:
    """Returns the rails of a node that a deployment uses, in the order it names them."""
    return tuple(node.rails[position] for position in positions)
