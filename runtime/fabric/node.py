"""What a node has at one moment, as plain data, and how it is shown."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.fabric.addresses import InterfaceAddress
from runtime.fabric.request import Rail
from runtime.fabric.sysfs import Interface, Port, read_interfaces, read_ports


@dataclass(frozen=True)
class NodeFabric:
    """Interfaces, addresses and RDMA ports of a node."""

    interfaces: tuple[Interface, ...]
    addresses: tuple[InterfaceAddress, ...]
    ports: tuple[Port, ...]

    def interface(self, name: str) -> Interface | None:
        """Returns an interface by name."""
        return next((interface for interface in self.interfaces if interface.name == name), None)

    def interfaces_of(self, address: str) -> tuple[str, ...]:
        """Returns the interfaces that carry an address."""
        return tuple(entry.interface for entry in self.addresses if entry.address == address)

    def addresses_of(self, interface: str) -> tuple[str, ...]:
        """Returns the addresses of an interface."""
        return tuple(entry.address for entry in self.addresses if entry.interface == interface)

    def ports_of(self, rail: Rail) -> tuple[Port, ...]:
        """Returns the RDMA ports that belong to a rail's interface, or to the device that the rail names."""
        by_interface = tuple(port for port in self.ports if rail.interface in port.interfaces)
        return by_interface or tuple(port for port in self.ports if port.hca == rail.hca)


def read_node(root: Path, addresses: tuple[InterfaceAddress, ...]) -> NodeFabric:
    """Reads the tree below a sysfs root; with the same tree and addresses it gives the same answer."""
    return NodeFabric(read_interfaces(root), addresses, read_ports(root))


def table_of(node: NodeFabric, rails: Sequence[Rail]) -> str:
    """Returns the node's interfaces and GID tables as text, with the deployment's rails marked."""
    rows = [("interface", "state", "mtu", "addresses", ""), *_interface_rows(node, rails)]
    lines = _aligned(rows)
    if not node.ports:
        return "\n".join([*lines, "no RDMA device"])
    port_rows = [("RDMA port", "state", "index", "type", "GID", "interface", ""), *_port_rows(node, rails)]
    return "\n".join([*lines, *_aligned(port_rows)])


def _interface_rows(node: NodeFabric, rails: Sequence[Rail]) -> Iterator[tuple[str, ...]]:
    for interface in node.interfaces:
        addresses = node.addresses_of(interface.name)
        marks = [f"<- rail {number}" for number, rail in enumerate(rails) if rail.address in addresses]
        shown = ", ".join(addresses) or "-"
        yield interface.name, interface.state, str(interface.mtu_bytes), shown, " ".join(marks)


def _port_rows(node: NodeFabric, rails: Sequence[Rail]) -> Iterator[tuple[str, ...]]:
    for port in node.ports:
        if not port.entries:
            yield port.name, port.state, "-", "-", f"all {port.slots} slots are empty", "-", ""
        for index in range(max((entry.index for entry in port.entries), default=-1) + 1):
            entry = port.slot(index)
            if entry is None:
                yield port.name, port.state, str(index), "-", "(empty)", "-", ""
                continue
            marks = [
                f"<- rail {number}"
                for number, rail in enumerate(rails)
                if index in port.indexes_of(rail.address, rail.interface)
            ]
            yield (
                port.name,
                port.state,
                str(index),
                entry.type,
                entry.address,
                entry.interface or "-",
                " ".join(marks),
            )


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
