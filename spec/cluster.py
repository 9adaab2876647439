"""The nodes of a cluster: how to reach them, where they sit and what they are made of."""

import ipaddress
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from spec.base import Strict


def _checked_address(text: str) -> str:
    address = ipaddress.ip_address(text)
    if address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast:
        raise ValueError(
            f"{text} is a loopback, link-local, unspecified or multicast address: other nodes cannot reach it; "
            "give the address that the node has on this network"
        )
    return str(address)


def _checked_host_key(text: str) -> str:
    if not re.fullmatch(r"(ssh-ed25519|ecdsa-sha2-nistp(256|384|521)|ssh-rsa) [A-Za-z0-9+/]+=*", text):
        raise ValueError("a host key is its type and its base64 text, as `ssh-keyscan -t ed25519 ADDRESS` prints them")
    return text


Address = Annotated[str, AfterValidator(_checked_address)]
HostKey = Annotated[str, AfterValidator(_checked_host_key)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=40)]


class Rail(Strict):
    """One port of a node on the fabric.

    Attributes:
        address: the node's own address on this rail, from which the HCA and the GID index are found at run time.
        interface: the network device that carries the address.
        hca: the RDMA device of the same port; none where the rail is plain Ethernet.
    """

    address: Address
    interface: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,15}$")
    hca: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_]+$")


class Node(Strict):
    """One machine: where it is managed and where it meets the other nodes.

    Attributes:
        management_address: where ssh and Docker are reached.
        host_key: the ssh host key that the node must show (type and base64 text).
        switch: the switch or ring position that it hangs on.
        rails: its fabric ports, rail 0 first.
    """

    management_address: Address
    host_key: HostKey
    switch: str
    rails: tuple[Rail, ...] = Field(min_length=1)


class Ssh(Strict):
    """How a controller logs in to every node of the cluster.

    Attributes:
        user: the account, which must be able to run docker.
        port: the ssh port.
        identity_file: private key on the controller, `~` allowed; none leaves the choice to the ssh agent.
        connect_timeout_seconds: how long a node may take to answer before it counts as unreachable.
    """

    user: str = "root"
    port: int = Field(default=22, ge=1, le=65535)
    identity_file: str | None = None
    connect_timeout_seconds: int = Field(default=10, ge=1, le=120)


class Limits(Strict):
    """Process limits of a rank's container; the defaults are those of the seeds' recipes.

    Attributes:
        open_files: soft and hard `nofile`.
        locked_memory_bytes: soft and hard `memlock`, -1 for no limit (RDMA registers memory).
        shared_memory_bytes: what `/dev/shm` of the node must at least hold (the rank uses the node's: host IPC).
    """

    open_files: int = Field(default=1_048_576, gt=0)
    locked_memory_bytes: int = Field(default=-1, ge=-1)
    shared_memory_bytes: int = Field(default=1 << 30, gt=0)


class VirtualFabric(Strict):
    """Networks of a cluster whose nodes are containers on this machine (`./fleet lab up`).

    Attributes:
        management_subnet: network of the management addresses.
        rail_subnets: one network a rail.
        sysfs_folder: folder of every node that stands for its /sys, for RDMA devices that the kernel here has not.
    """

    management_subnet: str
    rail_subnets: tuple[str, ...]
    sysfs_folder: str | None = Field(default=None, pattern=r"^/[A-Za-z0-9/_.-]+$")


class Cluster(Strict):
    """A set of nodes that can serve together (catalog/clusters/NAME.yaml).

    Attributes:
        hardware: name of a hardware class (catalog/hardware/NAME.yaml).
        storage_folder: folder on every node that holds runtime, weights, receipts and claims.
        virtual_fabric: present where `./fleet lab up` makes the nodes.
        build_on: the node that builds images and hands them on; the first if absent.
    """

    hardware: Name
    ssh: Ssh = Ssh()
    limits: Limits = Limits()
    storage_folder: str = Field(default="/var/lib/gb10-serving", pattern=r"^/[A-Za-z0-9/_.-]+$")
    virtual_fabric: VirtualFabric | None = None
    build_on: Name | None = None
    nodes: dict[Name, Node] = Field(min_length=1)

    @model_validator(mode="after")
    def _builder_is_a_node(self) -> "Cluster":
        if self.build_on is not None and self.build_on not in self.nodes:
            raise ValueError(
                f"build_on names {self.build_on}, which is no node of this cluster: use {', '.join(self.nodes)}"
            )
        return self

    @property
    def builder(self) -> str:
        """Name of the node that builds images and hands them on."""
        return self.build_on or next(iter(self.nodes))

    @model_validator(mode="after")
    def _addresses_are_unique(self) -> "Cluster":
        seen: dict[str, str] = {}
        for name, node in self.nodes.items():
            for address in (node.management_address, *(rail.address for rail in node.rails)):
                if seen.setdefault(address, name) != name:
                    raise ValueError(
                        f"nodes {seen[address]} and {name} both have the address {address}; each needs its own"
                    )
        return self


class Hardware(Strict):
    """What one node of a class is made of (catalog/hardware/NAME.yaml).

    Attributes:
        gpus: accelerators per node; 0 on the virtual fabric.
        memory_bytes: what the accelerator sees of its memory; on the virtual fabric what a node may use.
        unified: whether accelerator and host share one memory.
        platform: of its images.
        compute_capability: of its accelerators.
    """

    gpus: int = Field(ge=0)
    memory_bytes: int = Field(gt=0)
    unified: bool
    platform: Literal["linux/arm64", "linux/amd64"] | None
    compute_capability: str | None = Field(default=None, pattern=r"^\d+\.\d$")
