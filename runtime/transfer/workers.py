"""The processes of one round: one for each stream, forked so that they have all that was found out before."""

import json
import mmap
import os
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from runtime.transfer.errors import PeerError, TransferError
from runtime.transfer.handshake import Pass, accept_parent, greet_child
from runtime.transfer.kernel import limit_silence
from runtime.transfer.outlet import Outlet

_COUNTER = struct.Struct("=Qdd")
_PROBE_SOCKET_BYTES = 1 << 18

Work = Callable[[Callable[[int], None], Callable[..., None]], None]
"""What one stream does, given what counts its bytes and what reports (kind, details)."""


@dataclass(frozen=True)
class Neighbour:
    """Another node of the transfer: its name, and where it is met (port 0 where it calls us)."""

    node: str
    address: str
    port: int = 0


@dataclass(frozen=True)
class Meeting:
    """How a round's connections are made.

    Attributes:
        secret: of the transfer.
        round_number: of the attempt.
        node, address: this node.
        silence_seconds: after which a child that takes nothing counts as broken.
        children: whom this node sends to.
        probing: whether the round only measures, and therefore must leave little in the socket at its end.
    """

    secret: bytes
    round_number: int
    node: str
    address: str
    silence_seconds: float
    children: tuple[Neighbour, ...]
    probing: bool


class Counters:
    """Bytes, and the times of the first and the last of them, of each process, readable while it runs."""

    def __init__(self, processes: int) -> None:
        self._memory = mmap.mmap(-1, max(1, processes) * _COUNTER.size)
        self._processes = processes

    def adder(self, process: int) -> Callable[[int], None]:
        """Returns what the process calls with each number of bytes."""
        position = process * _COUNTER.size
        total, first = 0, 0.0

        def add(count: int) -> None:
            nonlocal total, first
            now = time.monotonic()
            first = first or now
            total += count
            _COUNTER.pack_into(self._memory, position, total, first, now)

        return add

    def read(self) -> tuple[int, float]:
        """Returns all bytes so far, and the seconds from the first to the last of them."""
        entries = [_COUNTER.unpack_from(self._memory, number * _COUNTER.size) for number in range(self._processes)]
        entries = [entry for entry in entries if entry[0]]
        if not entries:
            return 0, 0.0
        return sum(entry[0] for entry in entries), max(e[2] for e in entries) - min(e[1] for e in entries)


class Crew:
    """The running processes of a round.

    Attributes:
        pipes: descriptors on which they report, by process id; ready when there is something to take.
    """

    def __init__(self, streams: int) -> None:
        self.counters = Counters(streams)
        self.pipes: dict[int, int] = {}
        self._rest: dict[int, bytes] = {}
        self._alive_end, self._main_end = os.pipe()

    def start(self, number: int, work: Work) -> None:
        """Forks a process that does `work(count, report)` and ends."""
        reading, writing = os.pipe()
        process = os.fork()
        if process == 0:
            _live_and_die(work, self.counters.adder(number), writing, self._alive_end, self._main_end)
        os.close(writing)
        self.pipes[process] = reading
        self._rest[process] = b""

    def take(self, process: int) -> list[dict[str, object]]:
        """Returns what a process has reported; at its end, how it ended if that was not well."""
        content = os.read(self.pipes[process], 1 << 16)
        if not content:
            return self._bury(process)
        *lines, self._rest[process] = (self._rest[process] + content).split(b"\n")
        return [json.loads(line) for line in lines]

    def stop(self) -> None:
        """Ends all processes at once; what they have written stays as it is."""
        for process in self.pipes:
            os.kill(process, signal.SIGKILL)
        for process in list(self.pipes):
            self._bury(process)

    def close(self) -> None:
        """Gives up what was shared with the processes."""
        self.stop()
        for descriptor in (self._alive_end, self._main_end):
            os.close(descriptor)

    def _bury(self, process: int) -> list[dict[str, object]]:
        os.close(self.pipes.pop(process))
        _, status = os.waitpid(process, 0)
        code = os.waitstatus_to_exitcode(status)
        return [{"kind": "break", "who": "self", "reason": f"a stream's process ended ({code})"}] if code else []


def _live_and_die(
    work: Work,
    count: Callable[[int], None],
    writing: int,
    alive_end: int,
    main_end: int,
) -> None:
    """Does a stream's work in the forked process, reports what breaks it, and never returns."""
    code = 1
    try:
        os.close(main_end)
        threading.Thread(target=_end_with_main, args=(alive_end,), daemon=True).start()
        lock = threading.Lock()

        def report(kind: str, **details: object) -> None:
            with lock:
                os.write(writing, json.dumps({"kind": kind, **details}).encode() + b"\n")

        try:
            work(count, report)
        except PeerError as error:
            report("break", who="parent", reason=str(error))
        except (TransferError, OSError) as error:
            report("break", who="self", reason=str(error))
        code = 0
    except BaseException:  # noqa: BLE001 - a forked process must not run on in its parent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _end_with_main(alive_end: int) -> None:
    os.read(alive_end, 1)
    os._exit(1)


@contextmanager
def connected_children(meeting: Meeting, report: Callable[..., None]) -> Iterator[list[Outlet]]:
    """Connects one stream to every child, from this node's fabric address, and waits at last until all is sent.

    A child that cannot be had is reported.
    """

    def broken(child: str, reason: str) -> None:
        report("break", who="child", node=child, reason=reason)

    def connected(child: Neighbour) -> Outlet | None:
        try:
            connection = socket.create_connection(
                (child.address, child.port), timeout=meeting.silence_seconds, source_address=(meeting.address, 0)
            )
            greet_child(connection, Pass(meeting.secret, meeting.round_number, child.node))
            limit_silence(connection, meeting.silence_seconds)
            if meeting.probing:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PROBE_SOCKET_BYTES)
            return Outlet(child.node, connection, broken)
        except (OSError, PeerError) as error:
            broken(child.node, f"no connection to {child.address}:{child.port}: {error}")
            return None

    outlets = [outlet for outlet in map(connected, meeting.children) if outlet]
    try:
        yield outlets
    finally:
        for outlet in outlets:
            outlet.finish()


def wait_for_parent(
    listener: socket.socket, meeting: Meeting, parent: Neighbour, report: Callable[..., None]
) -> socket.socket:
    """Waits until the parent connects and proves itself; anybody else is refused and reported."""
    expected = Pass(meeting.secret, meeting.round_number, meeting.node)
    while True:
        connection, (address, *_) = listener.accept()
        try:
            if address != parent.address:
                raise PeerError(f"it is not {parent.node} ({parent.address})")
            accept_parent(connection, expected)
        except (PeerError, OSError) as error:
            connection.close()
            report("refused", address=address, reason=str(error))
            continue
        limit_silence(connection, meeting.silence_seconds)
        return connection
