"""Files from one node to many over the fabric: verified, resumable, at the speed of the link."""

import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ops.errors import OperationError
from ops.fan_out import LIFE_SIGN_SECONDS, MODULE, FanOut
from ops.node_session import NodeSession
from ops.progress import Report
from spec.party import Party


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
    with brought(source, source_folder, receivers, files, report) as received:
        return received


@contextmanager
def brought(
    source: Party, source_folder: str, receivers: Sequence[Receiver], files: Sequence[TransferFile], report: Report
) -> Iterator[dict[str, Received]]:
    """Brings files as `fan_out` does; while the context lasts, no other transfer gets the receivers' folders."""
    _require_distinct(source, receivers)
    _require_paths(files)
    with FanOut(source, source_folder, receivers, files, report) as transfer:
        yield {
            node: Received(
                node,
                member.moved_bytes,
                member.present_bytes or 0,
                tuple(sorted(files[index].path for index in member.wrong)),
                tuple(member.bypassed),
            )
            for node, member in transfer.run().items()
        }


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
    events: queue.Queue[tuple[NodeSession, dict[str, Any]]] = queue.Queue()
    listed = [[file.path, file.size_bytes, file.sha256] for file in files]
    sessions = {
        NodeSession(
            receiver.party.node,
            receiver.party.connection,
            receiver.party.storage_folder,
            MODULE,
            "inspect",
            {"folder": receiver.folder, "files": listed, "deep": deep},
            lambda session, event: events.put((session, event)),
        )
        for receiver in receivers
    }
    found: dict[str, Inspection] = {}
    try:
        for session, event in _until_ended(sessions, events):
            if event["event"] == "looked":
                missing = tuple(files[index].path for index, _ in event["missing"])
                found[session.node] = Inspection(session.node, event["present_bytes"], event["missing_bytes"], missing)
            elif event["reason"]:
                raise OperationError(event["reason"])
    finally:
        for session in sessions:
            session.close()
    return {receiver.party.node: found[receiver.party.node] for receiver in receivers}


def _until_ended(
    sessions: set[NodeSession], events: "queue.Queue[tuple[NodeSession, dict[str, Any]]]"
) -> Iterator[tuple[NodeSession, dict[str, Any]]]:
    """Yields events until every session has ended; meanwhile the nodes are told that somebody still waits for them."""
    running = set(sessions)
    while running:
        try:
            session, event = events.get(timeout=LIFE_SIGN_SECONDS)
        except queue.Empty:
            for session in running:
                session.show_life()
            continue
        if event["event"] == "ended":
            running.discard(session)
        yield session, event


def _require_distinct(source: Party, receivers: Sequence[Receiver]) -> None:
    seen = {source.node}
    for receiver in receivers:
        if receiver.party.node in seen:
            raise OperationError(
                f"{receiver.party.node} is named twice in one transfer: every node sends or receives once; leave out "
                "the source, which has the files"
            )
        seen.add(receiver.party.node)


def _require_paths(files: Sequence[TransferFile]) -> None:
    seen = set()
    for file in files:
        _require_inside(file.path)
        if file.path in seen:
            raise OperationError(f"{file.path!r} is twice in the list of files: name each file once")
        seen.add(file.path)


def _require_inside(path: str) -> None:
    if path.startswith("/") or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise OperationError(f"{path!r} in the list of files leads out of the folder: paths are relative, without `..`")
