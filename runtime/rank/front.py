"""What a head tells the router of its pool: whether to send requests here; and how long running ones still take.

The router asks over plain HTTP. 200: the group serves, and a known answer was right since its engine started. 404: it
still serves what it has begun and takes nothing new, since it is about to stop. 503, or nobody listens: it serves
nothing.
"""

import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.node.errors import NodeTaskError
from runtime.node.probes import ask, check_answer
from runtime.rank.listening import Listening

RIGHT, WRONG = "right", "wrong"

_ASK_AGAIN_SECONDS = 2.0
_SETTLE_SECONDS = 2.0
"""Until every router that asks twice a second has seen that nothing new is taken, one lost question included."""

_ESTABLISHED = "01"


@dataclass(frozen=True)
class FrontRequest:
    """What a head is asked to tell a router.

    Attributes:
        port: where the router asks.
        drain_seconds: how long running requests may hold up a stop.
        probe: a question with a known answer (`prompt`, `answer`, `match`, `tokens`).
        served_name: of the model.
        answer_timeout_seconds: for one answer.
    """

    port: int
    drain_seconds: float
    probe: Mapping[str, Any]
    served_name: str
    answer_timeout_seconds: float


class Front:
    """Answers the router for one life of the engine."""

    def __init__(self, request: FrontRequest, http_port: int, api_key_file: Path) -> None:
        """Listens; says that nothing is served yet.

        Args:
            request: what is told.
            http_port: of the engine.
            api_key_file: the engine's key, if there is one.

        Raises:
            OSError: the port is taken.
        """
        self._request, self._http_port, self._key_file = request, http_port, api_key_file
        self._answer: str | None = None
        self._draining_since: float | None = None
        self._ended = threading.Event()
        self._listening = Listening("front", "", request.port, self._tell)

    @property
    def answer(self) -> str | None:
        """`right` or `wrong`; none before there was an answer."""
        return self._answer

    def begin(self) -> None:
        """Asks the engine, which is healthy now, the known question."""
        threading.Thread(target=self._prove, name="front-probe", daemon=True).start()

    def is_drained(self) -> bool:
        """Takes nothing new from the first call on; tells whether what runs has ended, or has had its time."""
        now = time.monotonic()
        if self._draining_since is None:
            self._draining_since = now
        waited = now - self._draining_since
        if waited >= self._request.drain_seconds:
            return True
        return waited >= _SETTLE_SECONDS and running_requests(self._http_port) == 0

    def end(self) -> None:
        """Stops listening, which a router takes for down."""
        self._ended.set()
        self._listening.close()

    def _code(self) -> str:
        if self._draining_since is not None:
            return "404 Draining"
        return "200 Serving" if self._answer == RIGHT else "503 Not Serving"

    def _tell(self, connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(f"HTTP/1.0 {self._code()}\r\nContent-Length: 0\r\n\r\n".encode())

    def _prove(self) -> None:
        """Asks until there is an answer; a wrong one is not asked for again: the same engine would say it again."""
        request = self._request
        base = f"http://127.0.0.1:{self._http_port}"
        while not self._ended.is_set():
            try:
                choice = ask(
                    base, request.served_name, dict(request.probe), request.answer_timeout_seconds, self._key()
                )
            except NodeTaskError:
                self._ended.wait(_ASK_AGAIN_SECONDS)
                continue
            try:
                check_answer(dict(request.probe), choice)
            except NodeTaskError:
                self._answer = WRONG
            else:
                self._answer = RIGHT
            return

    def _key(self) -> str | None:
        return self._key_file.read_text().strip() if self._key_file.is_file() else None


def running_requests(port: int, folder: Path = Path("/proc/net")) -> int:
    """Returns how many connections are open to a port of this node.

    The router opens one for each request; a client that talks to the head itself and keeps its connection counts, too.

    Args:
        port: where the engine answers.
        folder: the kernel's tables.
    """
    found = 0
    for name in ("tcp", "tcp6"):
        path = folder / name
        for row in path.read_text().splitlines()[1:] if path.exists() else ():
            _, local, _, state, *_ = row.split()
            found += state == _ESTABLISHED and int(local.rpartition(":")[2], 16) == port
    return found
