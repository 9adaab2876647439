"""Files from one node to many over the fabric: verified, resumable, at the speed of the link."""

from collections.abc import Sequence
from dataclasses import dataclass

from ops.progress import Report
from spec.connection import Connection


@dataclass(frozen=True)
class Party:
    """A node that takes part in a transfer.

    Attributes:
        node: its name, for messages.
        connection: how to log in; none is this controller.
        storage_folder: our folder on the node, where the runtime is put.
        address: fabric address that the node binds to and is reached at.
        switch: the switch that it hangs on.
    """

    node: str
    connection: Connection | None
    storage_folder: str
    address: str
    switch: str


@dataclass(frozen=True)
class Receiver:
    """A node that gets the files, and the folder that holds them afterwards."""

    party: Party
    folder: str


@dataclass(frozen=True)
class TransferFile:
    """One file: its path relative to the folder (posix), its size and its SHA-256 (64 hexadecimal digits)."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Received:
    """What happened on one receiver.

    Attributes:
        node: its name.
        moved_bytes: what came over the network for it.
        present_bytes: what was there already, whole files and the beginnings that an earlier transfer left.
        fetched_again: paths whose first copy differed from the manifest.
        bypassed: what broke on the way to it, in words; empty where all went well.
    """

    node: str
    moved_bytes: int
    present_bytes: int
    fetched_again: tuple[str, ...] = ()
    bypassed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inspection:
    """What a receiver's folder holds of a list of files.

    Attributes:
        node: its name.
        present_bytes: of files that are whole, and of beginnings that a transfer goes on from.
        missing_bytes: what a transfer would move to it.
        missing: paths of the files that are absent, incomplete or different.
    """

    node: str
    present_bytes: int
    missing_bytes: int
    missing: tuple[str, ...]


def fan_out(
    source: Party, source_folder: str, receivers: Sequence[Receiver], files: Sequence[TransferFile], report: Report
) -> dict[str, Received]:
    """Brings the files of the source's folder into every receiver's folder.

    When it returns, every receiver's folder holds all files: verified, on disk, renamed into place. It may be repeated
    and goes on where it was interrupted. Other files in the folders stay. A transfer into a folder that another one
    is filling waits for it. Receipts, links and modes are the caller's.

    Args:
        source: the node that has the files.
        source_folder: where it has them.
        receivers: the nodes that get them.
        files: what is brought.
        report: receives one line at a time: bytes, rate and time left of each node, and what went wrong.

    Returns:
        What happened, by the receiver's node.

    Raises:
        OperationError: a node cannot be reached, has too little disk or keeps getting wrong bytes; names node and
            file. Receivers that could be served have been served.
    """
    raise NotImplementedError


def inspect(receivers: Sequence[Receiver], files: Sequence[TransferFile], deep: bool) -> dict[str, Inspection]:
    """Says what the receivers' folders hold of the files; moves nothing.

    Args:
        receivers: the nodes that are asked.
        files: what should be there.
        deep: whether the content of every file is hashed again, instead of comparing size and time with what was
            recorded when it was verified.

    Returns:
        What was found, by the receiver's node.

    Raises:
        OperationError: a node cannot be reached.
    """
    raise NotImplementedError
