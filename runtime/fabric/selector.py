"""NCCL's grammar for choosing devices and interfaces (NCCL_IB_HCA, NCCL_SOCKET_IFNAME).

A selector is `[^][=]NAME[:PORT],...`: without a sign, names are beginnings; `=` makes them whole names, `^` turns the
choice round, and `^=` does both. The signs stand once, before the list. NCCL itself reads what it does not understand
as something else in silence (a port that is no number becomes 0, names beyond its limits are cut off), so everything
of that kind is refused here. Newer releases also know NAME:PORT:RAIL:PLANE, which nothing here needs.
"""

from collections.abc import Iterable
from dataclasses import dataclass

MOST_ENTRIES = 32
LONGEST_NAME = 63
MOST_PORTS = 254


class SelectorError(ValueError):
    """A selector that NCCL would not read as it is meant."""


@dataclass(frozen=True)
class Entry:
    """One element of the list: a name or its beginning, and a port or all of them."""

    name: str
    port: int | None = None

    def __str__(self) -> str:
        return self.name if self.port is None else f"{self.name}:{self.port}"


@dataclass(frozen=True)
class Selector:
    """A choice of devices.

    Attributes:
        entries: the list.
        exact: whether names are whole names.
        inverted: whether the list says what not to take.
    """

    entries: tuple[Entry, ...]
    exact: bool = False
    inverted: bool = False

    def __str__(self) -> str:
        return "^" * self.inverted + "=" * self.exact + ",".join(map(str, self.entries))

    def entries_matching(self, name: str, port: int | None = None) -> tuple[Entry, ...]:
        """Returns the elements of the list that name a device's port, whichever way the choice goes."""
        return tuple(entry for entry in self.entries if self._matches(entry, name, port))

    def selects(self, name: str, port: int | None = None) -> bool:
        """Returns whether NCCL takes the device's port."""
        return bool(self.entries_matching(name, port)) != self.inverted

    def selected(self, ports: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
        """Returns which of these ports NCCL takes."""
        return {(name, port) for name, port in ports if self.selects(name, port)}

    def _matches(self, entry: Entry, name: str, port: int | None) -> bool:
        named = name == entry.name if self.exact else name.startswith(entry.name)
        return named and (port is None or entry.port in (None, port))


def parse_selector(text: str) -> Selector:
    """Reads a selector.

    Raises:
        SelectorError: naming what NCCL would read otherwise than it is meant.
    """
    inverted = text.startswith("^")
    rest = text[inverted:]
    exact = rest.startswith("=")
    if rest[exact:] == "":
        raise SelectorError(f"{text!r} names nothing: NCCL then takes every device")
    entries = tuple(_parse_entry(part, text) for part in rest[exact:].split(","))
    if len(entries) > MOST_ENTRIES:
        raise SelectorError(f"{text!r} has {len(entries)} entries: NCCL drops all after the {MOST_ENTRIES}th")
    return Selector(entries, exact, inverted)


def _parse_entry(part: str, text: str) -> Entry:
    name, colon, port = part.partition(":")
    if not name:
        raise SelectorError(f"{text!r} has an empty entry")
    if name.strip() != name or any(character.isspace() for character in name):
        raise SelectorError(f"{text!r}: NCCL does not skip the white space in {name!r}")
    if name[0] in "^=":
        raise SelectorError(f"{text!r}: the sign of {name!r} stands inside the list; `^` and `=` stand once, before it")
    if len(name.encode()) > LONGEST_NAME:
        raise SelectorError(f"{text!r}: NCCL cuts {name!r} off after {LONGEST_NAME} bytes")
    return Entry(name, _parse_port(port, text) if colon else None)


def _parse_port(port: str, text: str) -> int:
    if not (port.isascii() and port.isdigit()) or not 1 <= int(port) <= MOST_PORTS:
        raise SelectorError(f"{text!r}: {port!r} is no port; an RDMA device has ports 1 to {MOST_PORTS}")
    return int(port)
