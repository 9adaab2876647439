"""Sends to one child what is put in, from files, without copying it through this process."""

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable

from runtime.transfer.kernel import give_back_cache

_LEAD = 64
_ZEROS = bytes(1 << 20)


class OpenFile:
    """A file that several threads read or write; it is closed, and its page cache given back, after the last one."""

    def __init__(self, path: str, flags: int) -> None:
        self.descriptor = os.open(path, flags, 0o644)
        self._users = 1
        self._lock = threading.Lock()

    def share(self) -> "OpenFile":
        """Adds a user."""
        with self._lock:
            self._users += 1
        return self

    def release(self) -> None:
        """Takes a user away."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
        give_back_cache(self.descriptor)
        os.close(self.descriptor)


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
        self._waiting: queue.Queue[tuple[bytes, OpenFile | None, int, int] | None] = queue.Queue(_LEAD)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, header: bytes, file: OpenFile | None = None, offset: int = 0, length: int = 0) -> None:
        """Sends a header, then a range of a file (zeros where there is no file); waits while the child is behind."""
        self._waiting.put((header, file.share() if file else None, offset, length))

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
            header, file, offset, length = item
            if self.broken is None:
                try:
                    self._send(header, file, offset, length)
                except BlockingIOError:
                    self._break("it takes no byte any more")
                except OSError as error:
                    self._break(error.strerror or str(error))
            if file:
                file.release()
        self._connection.close()

    def _send(self, header: bytes, file: OpenFile | None, offset: int, length: int) -> None:
        if header:
            self._send_all(memoryview(header), socket.MSG_MORE if length else 0)
        end = offset + length
        while file and offset < end:
            count = os.sendfile(self._connection.fileno(), file.descriptor, offset, end - offset)
            if count == 0:
                # The file became shorter. The child learns it from the hash, the source says so afterwards.
                file = None
            offset += count
        while offset < end:
            offset += self._send_all(memoryview(_ZEROS)[: end - offset], 0)

    def _send_all(self, content: memoryview, flags: int) -> int:
        sent = 0
        while sent < len(content):
            sent += self._connection.send(content[sent:], flags)
        return sent

    def _break(self, reason: str) -> None:
        self.broken = reason
        self._connection.close()
        self._on_break(self.child, reason)
