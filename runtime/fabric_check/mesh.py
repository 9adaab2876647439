"""TCP between the rails of nodes: every node to every node, itself included, on ports that the kernel chooses.

The bootstrap of collectives does the same: it opens dynamic ports, and a head connects to its own address (seed 000).
"""

import contextlib
import hmac
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

_PASSWORD_BYTES = 32
_ANSWER_SECONDS = 10.0
_CHUNK = bytes(1 << 20)
_COUNT_BYTES = 8


class Listener:
    """Listens on several ports of each address and counts what known peers send.

    Args:
        addresses: of this node's rails.
        ports_each: how many ports on each.
        password: 64 hexadecimal digits that peers must send first, so that a stranger is told nothing.

    Raises:
        OSError: an address is not on this node.
    """

    def __init__(self, addresses: Sequence[str], ports_each: int, password: str) -> None:
        self._password = bytes.fromhex(password)
        self._sockets: list[socket.socket] = []
        self.ports: dict[str, list[int]] = {}
        for address in addresses:
            opened = [self._open(address) for _ in range(ports_each)]
            self.ports[address] = [one.getsockname()[1] for one in opened]

    def close(self) -> None:
        """Ends listening."""
        for one in self._sockets:
            one.close()

    def _open(self, address: str) -> socket.socket:
        opened = socket.create_server((address, 0))
        self._sockets.append(opened)
        threading.Thread(target=self._accept, args=(opened,), daemon=True).start()
        return opened

    def _accept(self, opened: socket.socket) -> None:
        while True:
            try:
                peer, _ = opened.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            peer.settimeout(_ANSWER_SECONDS)
            if not hmac.compare_digest(_receive(peer, _PASSWORD_BYTES), self._password):
                return
            buffer, count = bytearray(len(_CHUNK)), 0
            while got := peer.recv_into(buffer):
                count += got
            peer.sendall(count.to_bytes(_COUNT_BYTES, "big"))


def connect(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Connects to every target from one address of this node.

    Args:
        request: `source`, `password`, `targets` (each `node`, `address`, `port`), `stream_seconds` (how long to send as
            much as the link takes, 0 for a mere handshake).

    Returns:
        For each target `node`, `address`, `port`, `why` (it did not work, none if it did), `gigabits_per_second` (none
        without a stream).
    """
    return [
        {**target, **_connect(request["source"], target, request["password"], request["stream_seconds"])}
        for target in request["targets"]
    ]


def _connect(source: str, target: dict[str, Any], password: str, stream_seconds: float) -> dict[str, Any]:
    place = (target["address"], target["port"])
    try:
        with socket.create_connection(place, timeout=_ANSWER_SECONDS, source_address=(source, 0)) as peer:
            peer.sendall(bytes.fromhex(password))
            started = time.monotonic()
            sent = _stream(peer, started + stream_seconds) if stream_seconds else 0
            peer.shutdown(socket.SHUT_WR)
            counted = int.from_bytes(_receive(peer, _COUNT_BYTES), "big")
            seconds = time.monotonic() - started
    except TimeoutError:
        return _failed(f"no answer within {_ANSWER_SECONDS:.0f} s")
    except OSError as error:
        return _failed(error.strerror or str(error))
    if counted != sent:
        return _failed(f"{counted:,} of {sent:,} bytes arrived")
    return {"why": None, "gigabits_per_second": sent * 8 / seconds / 1e9 if stream_seconds else None}


def _stream(peer: socket.socket, until: float) -> int:
    sent = 0
    while time.monotonic() < until:
        peer.sendall(_CHUNK)
        sent += len(_CHUNK)
    return sent


def _receive(peer: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        piece = peer.recv(count - len(received))
        if not piece:
            raise ConnectionResetError(f"the peer hung up after {len(received)} of {count} bytes")
        received += piece
    return received


def _failed(why: str) -> dict[str, Any]:
    return {"why": why, "gigabits_per_second": None}
