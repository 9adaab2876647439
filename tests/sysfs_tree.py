"""Makes sysfs trees of a node's interfaces and RDMA devices, as the kernel lays them out."""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

V1, V2 = "IB/RoCE v1", "RoCE v2"
EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
UNREADABLE = Path("/sys/class/net/lo/speed")
"""A file whose reading answers EINVAL, as the attributes of an empty slot do."""

Slot = tuple[str, str, str] | None
"""Address, type and interface of a GID, none for an empty slot."""


@dataclass(frozen=True)
class PortTable:
    """One port of an RDMA device and its GID table; slots after the last are empty, as on a real card."""

    slots: Sequence[Slot]
    state: str = "4: ACTIVE"
    link_layer: str = "Ethernet"
    size: int = 16


@dataclass(frozen=True)
class Tree:
    """A node: state and MTU of its interfaces, ports of its devices by name (`rocep1s0f0:1`)."""

    interfaces: Mapping[str, tuple[str, int]]
    ports: Mapping[str, PortTable] = field(default_factory=dict)


def write_tree(root: Path, tree: Tree) -> Path:
    """Writes class/net and class/infiniband below a folder, over what an earlier call wrote there."""
    for name, (state, mtu) in tree.interfaces.items():
        _write(root / "class/net" / name / "operstate", state)
        _write(root / "class/net" / name / "mtu", str(mtu))
    for name, table in tree.ports.items():
        hca, _, number = name.partition(":")
        folder = root / "class/infiniband" / hca / "ports" / number
        _write(folder / "state", table.state)
        _write(folder / "link_layer", table.link_layer)
        for index in range(table.size):
            _write_slot(folder, index, table.slots[index] if index < len(table.slots) else None)
    return root


def gid_of(address: str) -> str:
    """Returns an address as the kernel writes a GID: IPv4 mapped into IPv6, every group with four digits."""
    parsed = ipaddress.ip_address(address)
    mapped = ipaddress.IPv6Address(f"::ffff:{address}") if parsed.version == 4 else parsed
    return mapped.exploded


def pairs(interface: str, *addresses: str) -> list[Slot]:
    """Returns the usual table: for each address RoCE v1, then RoCE v2."""
    return [(address, kind, interface) for address in addresses for kind in (V1, V2)]


def _write_slot(folder: Path, index: int, slot: Slot) -> None:
    attributes = {"types": slot[1], "ndevs": slot[2]} if slot else {}
    _write(folder / "gids" / str(index), gid_of(slot[0]) if slot else EMPTY_GID)
    for kind in ("types", "ndevs"):
        path = folder / "gid_attrs" / kind / str(index)
        path.unlink(missing_ok=True)
        if slot:
            _write(path, attributes[kind])
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(UNREADABLE)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
