"""From a node's fabric to the rails of a deployment: every rule that can keep an engine from starting."""

from collections.abc import Iterator, Sequence

from runtime.fabric.node import NodeFabric
from runtime.fabric.request import FabricRequest, Rail
from runtime.fabric.result import Problem, ResolvedRail
from runtime.fabric.sysfs import Port


def find_rails(request: FabricRequest, node: NodeFabric) -> tuple[list[ResolvedRail], list[Problem]]:
    """Returns the rails as the node has them, or why it has not: one of the two lists is empty.

    Args:
        request: what the deployment asks for.
        node: what there is.
    """
    problems = [
        problem for number, rail in enumerate(request.rails) for problem in _rail_problems(request, node, number, rail)
    ]
    if problems:
        return [], problems
    roce = request.kind == "roce"
    ports = [_usable_ports(node, rail)[0] for rail in request.rails] if roce else []
    problems = list(_port_problems(request, node, ports)) if roce else []
    return ([], problems) if problems else (_resolved(request, node, ports), [])


def _resolved(request: FabricRequest, node: NodeFabric, ports: Sequence[Port]) -> list[ResolvedRail]:
    if not ports:
        return [ResolvedRail(rail.address, rail.interface, _mtu(node, rail)) for rail in request.rails]
    index = min(_common_indexes(request, ports))
    return [
        ResolvedRail(rail.address, rail.interface, _mtu(node, rail), port.hca, port.number, index)
        for rail, port in zip(request.rails, ports, strict=True)
    ]


def _rail_problems(request: FabricRequest, node: NodeFabric, number: int, rail: Rail) -> Iterator[Problem]:
    socket_problem = _socket_problem(node, number, rail)
    if socket_problem:
        yield socket_problem
    elif request.kind == "roce":
        rdma_problem = _rdma_problem(node, number, rail)
        if rdma_problem:
            yield rdma_problem


def _socket_problem(node: NodeFabric, number: int, rail: Rail) -> Problem | None:
    """The rail's address must be on the rail's interface, and the interface up."""
    interface, holders = node.interface(rail.interface), node.interfaces_of(rail.address)
    if holders and rail.interface not in holders:
        return Problem(
            "address-on-another-interface",
            f"rail {number}: {rail.address} is on {', '.join(holders)}, and the cluster file says {rail.interface}",
            f"write `interface: {holders[0]}` (and its hca) for this node in the cluster file, or move the address",
        )
    if interface is None:
        return Problem(
            "interface-absent",
            f"rail {number}: this node has no interface {rail.interface}; a port without a cable has none",
            "look for the cable and for the name (`ip -br link`), then correct the cluster file",
            may_pass=True,
        )
    if not interface.is_up:
        return Problem(
            "interface-down",
            f"rail {number}: {rail.interface} is {interface.state}",
            f"`ip link set dev {rail.interface} up`; if that does not help, look at cable, optics and switch port",
            may_pass=True,
        )
    if not holders:
        return Problem(
            "address-absent",
            f"rail {number}: no interface has {rail.address}; {rail.interface} has "
            f"{', '.join(node.addresses_of(rail.interface)) or 'no IPv4 address'}",
            f"set {rail.address} on {rail.interface} in the node's network profile, or correct the cluster file",
            may_pass=True,
        )
    return None


def _rdma_problem(node: NodeFabric, number: int, rail: Rail) -> Problem | None:
    """Exactly one RDMA port, active, must have a RoCE v2 entry for the rail's address."""
    if not node.ports:
        return Problem(
            "no-rdma-device",
            f"rail {number}: this node has no RDMA device",
            "load its driver (`modprobe mlx5_ib`; `rdma link` shows devices), or choose the fabric kind ethernet",
            may_pass=True,
        )
    if rail.hca and all(port.hca != rail.hca for port in node.ports):
        holders = sorted({port.hca for port in node.ports if port.indexes_of(rail.address, rail.interface)})
        return Problem(
            "hca-absent",
            f"rail {number}: this node has no RDMA device {rail.hca}; it has "
            f"{', '.join(sorted({port.hca for port in node.ports}))}"
            + (f", and {rail.address} is on {', '.join(holders)}" if holders else ""),
            "correct `hca` in the cluster file (`rdma link` names the device of each interface)",
            may_pass=not holders,
        )
    usable = _usable_ports(node, rail)
    if not usable:
        return _other_hca(node, number, rail) or _no_entry(node, number, rail)
    if len(usable) > 1:
        return Problem(
            "address-on-two-ports",
            f"rail {number}: {', '.join(port.name for port in usable)} all have an entry for {rail.address}",
            "name the rail's `hca` in the cluster file",
        )
    return _state_problem(number, usable[0])


def _usable_ports(node: NodeFabric, rail: Rail) -> list[Port]:
    return [
        port for port in node.ports if rail.hca in (None, port.hca) and port.indexes_of(rail.address, rail.interface)
    ]


def _state_problem(number: int, port: Port) -> Problem | None:
    if port.link_layer == "InfiniBand":
        return Problem(
            "not-ethernet",
            f"rail {number}: the link layer of {port.name} is InfiniBand, which has no RoCE",
            "set the port to Ethernet (`mlxconfig -d DEVICE set LINK_TYPE_P1=2`, then reboot)",
        )
    if not port.is_active:
        return Problem(
            "port-down",
            f"rail {number}: the port {port.name} is {port.state}, and NCCL takes ACTIVE ports only",
            "look at cable, optics and switch port (`rdma link`, `ethtool INTERFACE`)",
            may_pass=True,
        )
    return None


def _other_hca(node: NodeFabric, number: int, rail: Rail) -> Problem | None:
    """The address may live on another device than the cluster file says: then that one's twin leads elsewhere."""
    others = [port.name for port in node.ports if port.indexes_of(rail.address, rail.interface)]
    if not others:
        return None
    elsewhere = sorted(
        {entry.address for port in node.ports if port.hca == rail.hca for entry in port.entries if "." in entry.address}
    )
    return Problem(
        "twin-port",
        f"rail {number}: {rail.address} is on {', '.join(others)}, and the cluster file says {rail.hca}, which "
        + (f"leads to another network with {', '.join(elsewhere)}" if elsewhere else "has no address of a fabric")
        + ": connections over it would hang",
        f"write `hca: {others[0].partition(':')[0]}` for this rail in the cluster file",
    )


def _no_entry(node: NodeFabric, number: int, rail: Rail) -> Problem:
    ports = node.ports_of(rail)
    state_problem = next((problem for port in ports if (problem := _state_problem(number, port))), None)
    if state_problem:
        return state_problem
    if any(entry.address == rail.address for port in ports for entry in port.entries):
        return Problem(
            "no-roce-v2",
            f"rail {number}: {', '.join(port.name for port in ports)} know {rail.address} as RoCE v1 only",
            "load the driver with RoCE v2 (`cma_roce_mode`), or update the card's firmware",
            may_pass=True,
        )
    if ports and not any(port.entries for port in ports):
        return Problem(
            "empty-gid-table",
            f"rail {number}: every GID of {', '.join(port.name for port in ports)} is all zeros",
            f"take the interface down and up (`ip link set dev {rail.interface} down`, then `up`) to fill the table",
            may_pass=True,
        )
    if ports:
        lacking = f"{', '.join(port.name for port in ports)} has no GID for {rail.address}"
    else:
        lacking = f"no RDMA port belongs to {rail.interface}, and none has a GID for {rail.address}"
    return Problem(
        "no-gid-entry",
        f"rail {number}: {lacking}, though {rail.interface} has the address",
        f"set the address anew (`ip address del` and `add` on {rail.interface}), or choose the fabric kind ethernet",
        may_pass=True,
    )


def _port_problems(request: FabricRequest, node: NodeFabric, ports: Sequence[Port]) -> Iterator[Problem]:
    """What is wrong with rails that are each right by themselves."""
    names = [port.name for port in ports]
    if len(set(names)) < len(names):
        yield Problem(
            "rails-share-a-port",
            f"{len(names)} rails lie on the RDMA ports {', '.join(names)}: NCCL takes a port once",
            "give each rail a port of its own, or use one rail (`fabric/rails` in the stack file)",
        )
    elif not _common_indexes(request, ports):
        indexes = [
            f"{port.name} at {', '.join(map(str, sorted(port.indexes_of(rail.address, rail.interface))))}"
            for rail, port in zip(request.rails, ports, strict=True)
        ]
        yield Problem(
            "gid-indexes-differ",
            f"the GIDs of the rails are {'; '.join(indexes)}: NCCL_IB_GID_INDEX is one number for all devices",
            "take all rails' interfaces down and set their addresses in the same order on each (a reboot with static "
            "profiles does it), or use one rail (`fabric/rails` in the stack file)",
            may_pass=True,
        )
    mtus = {rail.interface: _mtu(node, rail) for rail in request.rails}
    if len(set(mtus.values())) > 1:
        yield Problem(
            "mtu-differs",
            f"the MTU differs between the rails: {', '.join(f'{name} {mtu}' for name, mtu in mtus.items())}",
            f"`ip link set dev INTERFACE mtu {max(mtus.values())}` for those with less, and in their network profile",
            may_pass=True,
        )


def _common_indexes(request: FabricRequest, ports: Sequence[Port]) -> frozenset[int]:
    sets = [port.indexes_of(rail.address, rail.interface) for rail, port in zip(request.rails, ports, strict=True)]
    return frozenset.intersection(*sets)


def _mtu(node: NodeFabric, rail: Rail) -> int:
    interface = node.interface(rail.interface)
    assert interface  # _socket_problem found it
    return interface.mtu_bytes
