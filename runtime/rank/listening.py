"""A port at which short questions are answered until it is closed."""

import contextlib
import socket
import threading
from collections.abc import Callable

QUESTION_SECONDS = 1.0
"""As long as whoever asks may take to do so."""

_BACKLOG = 64


class Listening:
    """Answers at a port while it is open.

    All threads are made when it opens, so that answering needs no new one when memory is short.
    """

    def __init__(
        self, name: str, address: str, port: int, answer: Callable[[socket.socket], None], threads: int = 1
    ) -> None:
        """Listens.

        Args:
            name: of the threads.
            address: where; empty for all of this node.
            port: where, too.
            answer: reads a question from a connection, which waits QUESTION_SECONDS at most, and answers it.
            threads: how many questions are answered at a time.

        Raises:
            OSError: the address is not on this node, or the port is taken.
        """
        self._answer = answer
        self._listener = socket.create_server((address, port), backlog=_BACKLOG)
        for number in range(threads):
            threading.Thread(target=self._serve, name=f"{name}-{number}", daemon=True).start()

    def close(self) -> None:
        """Stops listening, so that whoever asks sees at once that nobody is here."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            # Who went away in the middle of a question asks again.
            with contextlib.suppress(OSError), connection:
                connection.settimeout(QUESTION_SECONDS)
                self._answer(connection)
