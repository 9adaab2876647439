"""Takes one connection's frames: each byte goes into a file, into the hash and on to the children, all at once.

Bytes pass from the socket into the page cache without a copy in this process (splice); the hash and the children read
them from there while they are still warm.
"""

import hashlib
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from runtime.transfer.arrival import Arrival
from runtime.transfer.errors import PeerError, TransferError
from runtime.transfer.finishing import Finisher
from runtime.transfer.follower import Follower
from runtime.transfer.frames import CHUNK_BYTES, DATA, END, LOST, PROBE, Frame, receive_exactly, receive_frame
from runtime.transfer.inspection import Beginning
from runtime.transfer.kernel import give_back_cache, start_writing, wide_pipe
from runtime.transfer.outlet import OpenFile, Outlet
from runtime.transfer.state import FolderState, WantedFile

PIPE_BYTES = 1 << 20
PIECE_BYTES = 1 << 20
READ_BYTES = 1 << 18
_LEAD = 64
_KEPT_BEHIND_BYTES = 16 * CHUNK_BYTES


class _Piece(NamedTuple):
    arrival: Arrival
    offset: int
    length: int
    is_last: bool


class Intake:
    """Works off one connection.

    Args:
        state: of the receiving folder.
        files: what the transfer brings; frames refer to it by number.
        missing: which of them this node needs, and what it has of them.
        outlets: to the children.
        count: told how many bytes that this node needs have come.
        report: told (kind, details) what went wrong with a file, or with this node.
    """

    def __init__(
        self,
        state: FolderState,
        files: Sequence[WantedFile],
        missing: Mapping[int, Beginning],
        outlets: Sequence[Outlet],
        count: Callable[[int], None],
        report: Callable[..., None],
    ) -> None:
        self._state = state
        self._files = files
        self._missing = missing
        self._outlets = outlets
        self._count = count
        self._report = report
        self._arrival: Arrival | None = None
        self._passing: tuple[int, OpenFile] | None = None
        self._pipe = wide_pipe(PIPE_BYTES)
        self._nowhere = os.open(os.devnull, os.O_WRONLY)
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._probe_digest = hashlib.sha256()
        self._finisher = Finisher(state, report)
        self._finishing = Follower(self._finisher.take, self._failed, _LEAD)
        self._hashing = Follower(self._hash, self._failed, _LEAD)

    def run(self, connection: socket.socket) -> None:
        """Takes frames until the last one. All that is whole by then is in place and on disk.

        Raises:
            PeerError: the connection ended too early.
            OSError: this node could not write.
            TransferError: the other end does not keep to the order.
        """
        try:
            while (frame := receive_frame(connection)).kind != END:
                self._take(frame, connection)
            for outlet in self._outlets:
                outlet.put(frame.packed())
        finally:
            self._hashing.finish()
            self._finishing.finish()
            self._finisher.flush()

    def _take(self, frame: Frame, connection: socket.socket) -> None:
        if frame.kind == DATA:
            self._take_data(frame, connection)
        elif frame.kind == PROBE:
            self._take_probe(frame, connection)
        elif frame.kind == LOST:
            reason = receive_exactly(connection, frame.length)
            self._leave_file()
            for outlet in self._outlets:
                outlet.put(frame.packed() + reason)
            self._report("lost", index=frame.number, reason=reason.decode())
        else:
            raise TransferError(f"the sender speaks another language (frame {frame.kind})")

    def _take_probe(self, frame: Frame, connection: socket.socket) -> None:
        for outlet in self._outlets:
            outlet.put(frame.packed(), None, 0, frame.length)
        left = frame.length
        while left:
            count = connection.recv_into(self._buffer[:left])
            if count == 0:
                raise PeerError("the connection ended too early")
            self._probe_digest.update(self._buffer[:count])
            self._count(count)
            left -= count

    def _take_data(self, frame: Frame, connection: socket.socket) -> None:
        if frame.number not in self._missing:
            self._pass_on(frame, connection)
            return
        arrival = self._arrival_of(frame.number)
        for outlet in self._outlets:
            outlet.put(frame.packed())
        if frame.offset + frame.length <= arrival.position and frame.offset < arrival.position:
            self._discard(connection, frame.length)
            self._forward(arrival.open_file, frame.offset, frame.length)
        elif frame.offset == arrival.position:
            self._receive(connection, arrival, frame.length)
        else:
            raise TransferError(f"{arrival.file.path}: expected byte {arrival.position}, got byte {frame.offset}")
        if frame.offset + frame.length == arrival.file.size_bytes:
            self._hashing.put(_Piece(arrival, arrival.position, 0, is_last=True))
            self._arrival = None

    def _pass_on(self, frame: Frame, connection: socket.socket) -> None:
        """Lets bytes of a file through that this node has already: the children get them from here."""
        self._discard(connection, frame.length)
        if not self._outlets:
            return
        if self._passing is None or self._passing[0] != frame.number:
            self._leave_file()
            self._passing = (frame.number, OpenFile(self._state.target(self._files[frame.number]), os.O_RDONLY))
        for outlet in self._outlets:
            outlet.put(frame.packed(), self._passing[1], frame.offset, frame.length)
        if frame.offset + frame.length == self._files[frame.number].size_bytes:
            self._leave_file()

    def _leave_file(self) -> None:
        if self._passing:
            self._passing[1].release()
            self._passing = None

    def _arrival_of(self, index: int) -> Arrival:
        if self._arrival is None:
            self._leave_file()
            self._arrival = Arrival(index, self._files[index], self._state, self._missing[index])
        if self._arrival.index != index:
            raise TransferError(f"{self._arrival.file.path}: another file came before its end")
        return self._arrival

    def _receive(self, connection: socket.socket, arrival: Arrival, length: int) -> None:
        left, start = length, arrival.position
        while left:
            count = self._into_pipe(connection, left)
            self._out_of_pipe(arrival.open_file.descriptor, arrival.position, count)
            arrival.position += count
            left -= count
            self._count(count)
            if arrival.position - start >= PIECE_BYTES or not left:
                self._hashing.put(_Piece(arrival, start, arrival.position - start, is_last=False))
                self._forward(arrival.open_file, start, arrival.position - start)
                start = arrival.position

    def _forward(self, file: OpenFile, offset: int, length: int) -> None:
        for outlet in self._outlets:
            outlet.put(b"", file, offset, length)

    def _into_pipe(self, connection: socket.socket, length: int) -> int:
        try:
            count = os.splice(connection.fileno(), self._pipe[1], min(length, PIPE_BYTES))
        except OSError as error:
            raise PeerError(f"the connection broke: {error.strerror}") from error
        if count == 0:
            raise PeerError("the connection ended too early")
        return count

    def _out_of_pipe(self, descriptor: int, offset: int, length: int) -> None:
        moved = 0
        while moved < length:
            moved += os.splice(self._pipe[0], descriptor, length - moved, offset_dst=offset + moved)

    def _discard(self, connection: socket.socket, length: int) -> None:
        while length:
            count = self._into_pipe(connection, length)
            length -= count
            while count:
                count -= os.splice(self._pipe[0], self._nowhere, count)

    def _hash(self, piece: _Piece) -> None:
        arrival, done = piece.arrival, 0
        descriptor = arrival.open_file.descriptor
        while done < piece.length:
            count = os.preadv(descriptor, [self._buffer[: piece.length - done]], piece.offset + done)
            if count == 0:
                raise TransferError(f"{arrival.file.path} became shorter while it was written: who else writes there?")
            arrival.digest.update(self._buffer[:count])
            done += count
        end = piece.offset + piece.length
        if piece.length and end % CHUNK_BYTES == 0:
            arrival.record_prefix()
            start_writing(descriptor, end - CHUNK_BYTES, CHUNK_BYTES)
            give_back_cache(descriptor, max(0, end - _KEPT_BEHIND_BYTES - CHUNK_BYTES), CHUNK_BYTES)
        if piece.is_last:
            self._finishing.put(arrival)

    def _failed(self, error: Exception) -> None:
        self._report("break", who="self", reason=str(error))
