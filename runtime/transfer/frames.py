"""What goes over a connection of a transfer: a header, and for some kinds that many bytes after it.

Frames of one file follow each other in order; a DATA frame never crosses a multiple of CHUNK_BYTES.
"""

import socket
import struct
from typing import NamedTuple

from runtime.transfer.errors import PeerError

CHUNK_BYTES = 8 << 20
"""A transfer goes on from a multiple of this after an interruption."""

DATA, LOST, PROBE, END = 1, 2, 3, 4
"""Bytes of a file; why the source cannot give a file; bytes that only measure; nothing more comes."""

_HEADER = struct.Struct("!BxxxIQQ")
HEADER_BYTES = _HEADER.size


class Frame(NamedTuple):
    """A header.

    Attributes:
        kind: DATA, LOST, PROBE or END.
        number: of the file in the list that both ends have.
        offset: where in the file the bytes belong.
        length: how many bytes follow.
    """

    kind: int
    number: int = 0
    offset: int = 0
    length: int = 0

    def packed(self) -> bytes:
        """Returns the header as it goes over the wire."""
        return _HEADER.pack(*self)


def receive_frame(connection: socket.socket) -> Frame:
    """Waits for the next header.

    Raises:
        PeerError: the connection ended before it.
    """
    return Frame(*_HEADER.unpack(receive_exactly(connection, HEADER_BYTES)))


def receive_exactly(connection: socket.socket, length: int) -> bytes:
    """Waits for `length` bytes.

    Raises:
        PeerError: the connection ended before them.
    """
    buffer = bytearray(length)
    view, filled = memoryview(buffer), 0
    while filled < length:
        try:
            count = connection.recv_into(view[filled:])
        except OSError as error:
            raise PeerError(f"the connection broke: {error.strerror or error}") from error
        if count == 0:
            raise PeerError("the connection ended too early")
        filled += count
    return bytes(buffer)
