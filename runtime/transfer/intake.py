"""Takes one connection's frames: each byte is hashed, goes to the children and into a file, all at once.

A block is hashed where it lies, while threads of their own write it and pass it on.
"""

import hashlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from runtime.transfer.arrival import Arrival
from runtime.transfer.blocks import BLOCK_BYTES, Block, BlockPool
from runtime.transfer.errors import PeerError, TransferError
from runtime.transfer.finishing import Finisher
from runtime.transfer.follower import Follower
from runtime.transfer.frames import CHUNK_BYTES, DATA, END, LOST, PROBE, Frame, receive_exactly, receive_frame
from runtime.transfer.inspection import Beginning
from runtime.transfer.outlet import Outlet
from runtime.transfer.state import FolderState, WantedFile

POOL_BLOCKS = 8
_LEAD = 64


class _Piece(NamedTuple):
    """What is to be written of a file: a block at an offset, and the hash of the file up to the end of a chunk."""

    arrival: Arrival
    block: Block
    offset: int
    prefix: str | None


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
        self._pool = BlockPool(POOL_BLOCKS)
        self._probe_digest = hashlib.sha256()
        self._finisher = Finisher(state, report)
        self._finishing = Follower(self._finisher.take, Arrival.close, self._failed, _LEAD)
        self._writing: Follower[_Piece | Arrival] = Follower(self._write, _leave, self._failed, _LEAD)

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
            self._writing.finish()
            self._finishing.finish()
            self._finisher.flush()

    def _take(self, frame: Frame, connection: socket.socket) -> None:
        if frame.kind == DATA:
            self._take_data(frame, connection)
        elif frame.kind == PROBE:
            self._take_probe(frame, connection)
        elif frame.kind == LOST:
            reason = receive_exactly(connection, frame.length)
            for outlet in self._outlets:
                outlet.put(frame.packed() + reason)
            self._report("lost", index=frame.number, reason=reason.decode())
        else:
            raise TransferError(f"the sender speaks another language (frame {frame.kind})")

    def _take_probe(self, frame: Frame, connection: socket.socket) -> None:
        for block in self._passed_on(frame, connection):
            self._probe_digest.update(block.content)
            self._count(block.length)
            block.release()

    def _take_data(self, frame: Frame, connection: socket.socket) -> None:
        arrival = self._arrival_of(frame)
        for block in self._passed_on(frame, connection):
            if arrival is None:
                block.release()
            else:
                self._take_block(arrival, block)
        if arrival and arrival.position == arrival.file.size_bytes:
            self._writing.put(arrival)
            self._arrival = None

    def _take_block(self, arrival: Arrival, block: Block) -> None:
        offset = arrival.position
        arrival.digest.update(block.content)
        arrival.position += block.length
        self._count(block.length)
        prefix = arrival.digest.hexdigest() if arrival.position % CHUNK_BYTES == 0 else None
        self._writing.put(_Piece(arrival, block, offset, prefix))

    def _arrival_of(self, frame: Frame) -> Arrival | None:
        """Returns the file that these bytes belong into; none where this node has them already."""
        if frame.number not in self._missing:
            return None
        if self._arrival is None:
            self._arrival = Arrival(frame.number, self._files[frame.number], self._state, self._missing[frame.number])
        arrival = self._arrival
        if arrival.index != frame.number:
            raise TransferError(f"{arrival.file.path}: another file came before its end")
        if frame.offset + frame.length <= arrival.position and frame.length:
            return None
        if frame.offset != arrival.position:
            raise TransferError(f"{arrival.file.path}: expected byte {arrival.position}, got byte {frame.offset}")
        return arrival

    def _passed_on(self, frame: Frame, connection: socket.socket) -> Iterator[Block]:
        """Receives what belongs to a frame and yields each block, which its user releases; the children get it too."""
        header, left = frame.packed(), frame.length
        if not left:
            for outlet in self._outlets:
                outlet.put(header)
        while left:
            block = self._pool.take()
            block.length = min(left, BLOCK_BYTES)
            _fill(block, connection)
            for outlet in self._outlets:
                outlet.put(header, block)
            header, left = b"", left - block.length
            yield block

    def _write(self, piece: _Piece | Arrival) -> None:
        if isinstance(piece, Arrival):
            self._finishing.put(piece)
            return
        try:
            piece.arrival.write(piece.block.content, piece.offset)
        finally:
            piece.block.release()
        if piece.prefix:
            piece.arrival.record_prefix(piece.prefix)

    def _failed(self, error: Exception) -> None:
        self._report("break", who="self", reason=str(error))


def _fill(block: Block, connection: socket.socket) -> None:
    try:
        count = connection.recv_into(block.content, 0, socket.MSG_WAITALL)
    except OSError as error:
        raise PeerError(f"the connection broke: {error.strerror}") from error
    if count < block.length:
        raise PeerError("the connection ended too early")


def _leave(piece: _Piece | Arrival) -> None:
    if isinstance(piece, Arrival):
        piece.close()
    else:
        piece.block.release()
