"""Reads interfaces, RDMA ports and their GID tables from a sysfs tree: `/sys`, or one made for a test."""

import errno
import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROCE_V2 = "RoCE v2"
_NOTHING_THERE = (errno.ENOENT, errno.EINVAL, errno.ENODEV, errno.ENOTDIR)
"""An empty slot of a GID table answers EINVAL; a device that is being removed answers the others."""


@dataclass(frozen=True)
class Interface:
    """A network device.

    Attributes:
        name: as `ip link` shows it.
        state: of the link: `up`, `down`, `lowerlayerdown`, `unknown` and others that the kernel has.
        mtu_bytes: the largest packet.
    """

    name: str
    state: str
    mtu_bytes: int

    @property
    def is_up(self) -> bool:
        """Whether packets can pass; some virtual devices never say more than `unknown`."""
        return self.state in ("up", "unknown")


@dataclass(frozen=True)
class GidEntry:
    """One slot of a port's GID table that is in use.

    Attributes:
        index: of the slot; slots between two that are in use may be empty.
        gid: in the kernel's notation.
        type: `RoCE v2` or `IB/RoCE v1`.
        interface: that the entry belongs to; none where the kernel does not say.
    """

    index: int
    gid: str
    type: str
    interface: str | None

    @property
    def address(self) -> str:
        """The IPv4 address that it maps, else the IPv6 address that it is."""
        gid = ipaddress.IPv6Address(self.gid)
        return str(gid.ipv4_mapped or gid)


@dataclass(frozen=True)
class Port:
    """One port of an RDMA device.

    Attributes:
        hca: the device.
        number: of the port, from 1.
        state: such as `ACTIVE` or `DOWN`.
        link_layer: `Ethernet` or `InfiniBand`.
        slots: how many the GID table has.
        entries: those in use.
    """

    hca: str
    number: int
    state: str
    link_layer: str
    slots: int
    entries: tuple[GidEntry, ...]

    @property
    def name(self) -> str:
        """As NCCL's selectors write it."""
        return f"{self.hca}:{self.number}"

    @property
    def is_active(self) -> bool:
        """Whether NCCL would use it at all."""
        return self.state == "ACTIVE"

    @property
    def interfaces(self) -> frozenset[str]:
        """The interfaces that its entries belong to."""
        return frozenset(entry.interface for entry in self.entries if entry.interface)

    def slot(self, index: int) -> GidEntry | None:
        """Returns what a slot holds; none where it is empty or does not exist."""
        return next((entry for entry in self.entries if entry.index == index), None)

    def indexes_of(self, address: str, interface: str) -> frozenset[int]:
        """Returns the RoCE v2 entries of an address on an interface."""
        return frozenset(
            entry.index
            for entry in self.entries
            if entry.type == ROCE_V2 and entry.address == address and entry.interface in (interface, None)
        )


def read_interfaces(root: Path) -> tuple[Interface, ...]:
    """Returns the network devices of `root`/class/net, by name."""
    found = (_read_interface(folder) for folder in _folders(root / "class/net"))
    return tuple(interface for interface in found if interface)


def read_ports(root: Path) -> tuple[Port, ...]:
    """Returns the ports of all RDMA devices of `root`/class/infiniband, by device and number."""
    return tuple(
        _read_port(device.name, folder)
        for device in _folders(root / "class/infiniband")
        for folder in sorted(_folders(device / "ports"), key=lambda folder: int(folder.name))
    )


def _read_interface(folder: Path) -> Interface | None:
    mtu = _read(folder / "mtu")
    return Interface(folder.name, _read(folder / "operstate") or "unknown", int(mtu)) if mtu else None


def _read_port(hca: str, folder: Path) -> Port:
    indexes = sorted(int(path.name) for path in _folders(folder / "gids"))
    state = (_read(folder / "state") or "absent").rpartition(":")[2].strip()
    layer = _read(folder / "link_layer") or "unknown"
    return Port(hca, int(folder.name), state, layer, len(indexes), tuple(_entries(folder, indexes)))


def _entries(folder: Path, indexes: list[int]) -> Iterator[GidEntry]:
    for index in indexes:
        gid = _read(folder / "gids" / str(index))
        # An empty slot is all zeros, and has neither type nor interface.
        if gid and re.search("[1-9a-fA-F]", gid):
            attributes = folder / "gid_attrs"
            kind = _read(attributes / "types" / str(index)) or "unknown"
            yield GidEntry(index, gid, kind, _read(attributes / "ndevs" / str(index)))


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return []
        raise


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return None
        raise
