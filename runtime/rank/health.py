"""Asks the head's engine for its health until it serves."""

import contextlib
import socket
import threading

_ASK_SECONDS = 1.0
_ANSWER_SECONDS = 5.0
_HEALTHY = b"200"


class Health:
    """Asks `/health` again and again in a thread of its own, because an engine that loads may not answer for long.

    Attributes:
        answered: whether it has been healthy once.
    """

    def __init__(self, port: int) -> None:
        """Starts asking on the loopback address."""
        self._port = port
        self._ended = threading.Event()
        self.answered = False
        threading.Thread(target=self._follow, name="health", daemon=True).start()

    def end(self) -> None:
        """Stops asking."""
        self._ended.set()

    def _follow(self) -> None:
        while not self.answered and not self._ended.wait(_ASK_SECONDS):
            with contextlib.suppress(OSError):
                self.answered = self._is_healthy()

    def _is_healthy(self) -> bool:
        with socket.create_connection(("127.0.0.1", self._port), timeout=_ANSWER_SECONDS) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return connection.recv(64).split(b" ")[1:2] == [_HEALTHY]
