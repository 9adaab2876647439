"""Signed words between supervisors: one question, one answer, one connection.

A question is one line of JSON with a nonce and its signature; the answer is one line with the status and a signature
over nonce and status, so that neither can be forged nor an old answer be shown again. Who has not the group's key is
told nothing.
"""

import hashlib
import hmac
import json
import secrets
import socket
import time
from pathlib import Path
from typing import Any

_MOST_BYTES = 1 << 18
_QUESTION = "status"


_PACKETS_BYTES = 1200
"""At most, of one exchange beside its two lines: eleven packets of TCP."""


class Traffic:
    """Counts what supervisors put on the rails, so that it is not taken for the engine's traffic."""

    def __init__(self) -> None:
        self.bytes = 0

    def count(self, question: bytes, answer: bytes) -> None:
        """Adds one exchange; two at the same moment may count as one, which is far below what matters."""
        self.bytes += len(question) + len(answer) + _PACKETS_BYTES


class ExchangeError(Exception):
    """Raised when a peer did not give a genuine answer; `refused` tells whether nothing listens at its address."""

    def __init__(self, text: str, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


def read_key(path: Path) -> bytes:
    """Returns the group's key; it is never empty.

    Raises:
        OSError: it cannot be read.
        ValueError: it is too short to be one.
    """
    key = path.read_bytes().strip()
    if len(key) < 32:
        raise ValueError(f"{path} holds {len(key)} bytes, which is no key of a group: `pulumi up` writes it again")
    return key


def ask_status(
    key: bytes, address: str, port: int, source: str | None, timeout_seconds: float, traffic: Traffic | None = None
) -> dict[str, Any]:
    """Asks the supervisor at an address for its status.

    Args:
        key: the group's.
        address: of its endpoint.
        port: of its endpoint.
        source: our own address on the fabric, so that the question takes that way; none leaves it to the system.
        timeout_seconds: for the connection, and again for the answer.
        traffic: counts it.

    Raises:
        ExchangeError: it does not listen, does not answer, or its answer is not genuine.
    """
    nonce = secrets.token_hex(16)
    question = {"ask": _QUESTION, "nonce": nonce, "signature": _sign(key, "question", nonce, "")}
    try:
        with socket.create_connection(
            (address, port), timeout=timeout_seconds, source_address=(source, 0) if source else None
        ) as connection:
            connection.settimeout(timeout_seconds)
            asked = json.dumps(question).encode() + b"\n"
            connection.sendall(asked)
            line = read_line(connection, timeout_seconds)
            if traffic:
                traffic.count(asked, line)
    except ConnectionRefusedError:
        raise ExchangeError("nothing listens there", refused=True) from None
    except TimeoutError:
        raise ExchangeError(f"no answer within {timeout_seconds:g} s") from None
    except OSError as error:
        raise ExchangeError(error.strerror or str(error)) from None
    return _checked(key, nonce, line)


def answer_to(key: bytes, line: bytes, status: dict[str, Any]) -> bytes:
    """Returns the answer to a question, an empty one for a question that this group did not sign."""
    try:
        question = json.loads(line)
        nonce, signature = str(question["nonce"]), str(question["signature"])
    except (ValueError, KeyError, TypeError):
        return b""
    if not hmac.compare_digest(signature, _sign(key, "question", nonce, "")):
        return b""
    text = json.dumps(status, sort_keys=True)
    return json.dumps({"status": text, "signature": _sign(key, "answer", nonce, text)}).encode() + b"\n"


def read_line(connection: socket.socket, seconds: float) -> bytes:
    """Reads up to the end of a line, or of the connection, within a time for all of it.

    Raises:
        OSError: nothing more came, or not in time.
    """
    data, deadline = b"", time.monotonic() + seconds
    while not data.endswith(b"\n") and len(data) < _MOST_BYTES:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        chunk = connection.recv(65536)
        if not chunk:
            break
        data += chunk
    return data


def _checked(key: bytes, nonce: str, line: bytes) -> dict[str, Any]:
    if not line:
        raise ExchangeError("it closed the connection: it has another group's key, or is no supervisor")
    try:
        answer = json.loads(line)
        text, signature = str(answer["status"]), str(answer["signature"])
    except (ValueError, KeyError, TypeError):
        raise ExchangeError("its answer is not a supervisor's: another program listens there") from None
    if not hmac.compare_digest(signature, _sign(key, "answer", nonce, text)):
        raise ExchangeError("its answer is not signed with this group's key: another deployment listens there")
    return json.loads(text)


def _sign(key: bytes, kind: str, nonce: str, text: str) -> str:
    return hmac.new(key, f"gb10-serving {kind}\n{nonce}\n{text}".encode(), hashlib.sha256).hexdigest()
