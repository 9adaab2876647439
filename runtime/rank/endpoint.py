"""The status endpoint of a rank, on its fabric address only."""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from runtime.rank.exchange import Traffic, answer_to, read_line

_THREADS = 3
_SECONDS_FOR_A_QUESTION = 1.0


class Endpoint:
    """Answers peers while it is open.

    All threads are made when it opens, so that answering needs no new one when memory is short.
    """

    def __init__(
        self, address: str, port: int, key: bytes, status: Callable[[], dict[str, Any]], traffic: Traffic
    ) -> None:
        """Listens.

        Args:
            address: where.
            port: where, too.
            key: the group's.
            status: returns what is answered.
            traffic: counts it.

        Raises:
            OSError: the address is not on this node, or the port is taken.
        """
        self._key = key
        self._status = status
        self._traffic = traffic
        self._listener = socket.create_server((address, port), backlog=64)
        for number in range(_THREADS):
            threading.Thread(target=self._serve, name=f"endpoint-{number}", daemon=True).start()

    def close(self) -> None:
        """Stops listening, so that peers see at once that this rank is gone."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            # A peer that went away in the middle of its question asks again.
            with contextlib.suppress(OSError), connection:
                connection.settimeout(_SECONDS_FOR_A_QUESTION)
                question = read_line(connection, _SECONDS_FOR_A_QUESTION)
                answer = answer_to(self._key, question, self._status())
                connection.sendall(answer)
                self._traffic.count(question, answer)
