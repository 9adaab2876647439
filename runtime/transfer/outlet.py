"""Sends to one child what is put in: from files without copying it through this process, or from memory."""

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from runtime.transfer.kernel import give_back_cache
from runtime.transfer.shared import Shared

_LEAD = 8


class Payload(Protocol):
    """What follows a header; several outlets send the same one."""

    def share(self) -> None:
        """Adds a user."""

    def release(self) -> None:
        """Takes a user away."""

    def send(self, connection: socket.socket) -> None:
        """Sends all of it."""


class OpenFile(Shared):
    """A file that several threads read; it is closed, and its page cache given back, after the last one."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.descriptor = os.open(path, os.O_RDONLY)

    def _give_up(self) -> None:
        give_back_cache(self.descriptor)
        os.close(self.descriptor)


class FileRange:
    """A part of an open file; zeros take the place of bytes that the file has no longer."""

    def __init__(self, file: OpenFile, offset: int, length: int) -> None:
        self._file, self._offset, self._length = file, offset, length
        self.share, self.release = file.share, file.release

    def send(self, connection: socket.socket) -> None:
        """Sends it from the page cache."""
        offset, end = self._offset, self._offset + self._length
        while offset < end:
            count = os.sendfile(connection.fileno(), self._file.descriptor, offset, end - offset)
            if count == 0:
                # The child learns it from the hash, the source says so afterwards.
                Zeros(end - offset).send(connection)
                return
            offset += count


class Zeros:
    """So many zeros."""

    _BLOCK = memoryview(bytes(1 << 20))

    def __init__(self, length: int) -> None:
        self._length = length

    def share(self) -> None:
        """Zeros are for everybody."""

    def release(self) -> None:
        """Zeros are for everybody."""

    def send(self, connection: socket.socket) -> None:
        """Sends them."""
        left = self._length
        while left:
            count = min(left, len(self._BLOCK))
            connection.sendall(self._BLOCK[:count])
            left -= count


class Outlet:
    """One connection to a child, with a thread of its own; what is put in goes out in order.

    Attributes:
        child: name of the child, for messages.
        broken: why it sends nothing any more; none while it does.
    """

    def __init__(self, child: str, connection: socket.socket, on_break: Callable[[str, str], None]) -> None:
        self.child = child
        self.broken: str | None = None
        self._connection = connection
        self._on_break = on_break
        self._waiting: queue.Queue[tuple[bytes, Payload | None] | None] = queue.Queue(_LEAD)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, header: bytes, payload: Payload | None = None) -> None:
        """Sends a header, then what belongs to it; waits while the child is behind."""
        if payload:
            payload.share()
        self._waiting.put((header, payload))

    def discard_waiting(self) -> None:
        """Forgets what was put in and has not begun to go out."""
        with contextlib.suppress(queue.Empty):
            while (item := self._waiting.get_nowait()) is not None:
                if item[1]:
                    item[1].release()

    def finish(self) -> None:
        """Waits until all is sent and closes the connection."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            header, payload = item
            if self.broken is None:
                try:
                    self._send(header, payload)
                except BlockingIOError:
                    self._break("it takes no byte any more")
                except OSError as error:
                    self._break(error.strerror or str(error))
            if payload:
                payload.release()
        self._connection.close()

    def _send(self, header: bytes, payload: Payload | None) -> None:
        if header:
            self._connection.sendall(header, socket.MSG_MORE if payload else 0)
        if payload:
            payload.send(self._connection)

    def _break(self, reason: str) -> None:
        self.broken = reason
        self._connection.close()
        self._on_break(self.child, reason)
