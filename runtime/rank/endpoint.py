"""The status endpoint of a rank, on its fabric address only."""

import socket
from collections.abc import Callable
from typing import Any

from runtime.rank.exchange import Traffic, answer_to, read_line
from runtime.rank.listening import QUESTION_SECONDS, Listening

_THREADS = 3


def answer_peers(
    address: str, port: int, key: bytes, status: Callable[[], dict[str, Any]], traffic: Traffic
) -> Listening:
    """Answers peers from now on, until it is closed.

    Args:
        address: where.
        port: where, too.
        key: the group's.
        status: returns what is answered.
        traffic: counts it.

    Raises:
        OSError: the address is not on this node, or the port is taken.
    """

    def answer(connection: socket.socket) -> None:
        question = read_line(connection, QUESTION_SECONDS)
        said = answer_to(key, question, status())
        connection.sendall(said)
        traffic.count(question, said)

    return Listening("endpoint", address, port, answer, _THREADS)
