"""Both ends of a connection prove that they know the transfer's one-time secret, without showing it.

The receiving end (child) sends a nonce; the sending end (parent) answers with its own nonce and an HMAC over both, the
round and the child's name; the child proves itself in the same way with another role. A proof is of no use in another
connection, another round or another transfer.
"""

import hmac
import secrets
import socket
from dataclasses import dataclass

from runtime.transfer.errors import PeerError
from runtime.transfer.frames import receive_exactly

_GREETING = b"gb10-transfer-1\n"
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_PATIENCE_SECONDS = 5


@dataclass(frozen=True)
class Pass:
    """What both ends must agree on.

    Attributes:
        secret: of this transfer.
        round_number: of the attempt that the connection is for.
        child: name of the receiving node.
    """

    secret: bytes
    round_number: int
    child: str

    def proof(self, role: bytes, child_nonce: bytes, parent_nonce: bytes) -> bytes:
        """Returns what only a holder of the secret can say in this role and connection."""
        text = b"\0".join([_GREETING, role, str(self.round_number).encode(), self.child.encode()])
        return hmac.digest(self.secret, text + child_nonce + parent_nonce, "sha256")


def accept_parent(connection: socket.socket, expected: Pass) -> None:
    """Makes sure that whoever connected is the parent.

    Raises:
        PeerError: it is not, or it says nothing.
    """
    connection.settimeout(_PATIENCE_SECONDS)
    child_nonce = secrets.token_bytes(_NONCE_BYTES)
    _send(connection, _GREETING + child_nonce)
    parent_nonce = receive_exactly(connection, _NONCE_BYTES)
    proof = receive_exactly(connection, _PROOF_BYTES)
    if not hmac.compare_digest(proof, expected.proof(b"parent", child_nonce, parent_nonce)):
        raise PeerError("it does not know this transfer's secret")
    _send(connection, expected.proof(b"child", child_nonce, parent_nonce))
    connection.settimeout(None)


def greet_child(connection: socket.socket, expected: Pass) -> None:
    """Proves ourselves to a child and makes sure that it is one.

    Raises:
        PeerError: it refuses, is something else, or says nothing.
    """
    connection.settimeout(_PATIENCE_SECONDS)
    if receive_exactly(connection, len(_GREETING)) != _GREETING:
        raise PeerError("something else listens there")
    child_nonce = receive_exactly(connection, _NONCE_BYTES)
    parent_nonce = secrets.token_bytes(_NONCE_BYTES)
    _send(connection, parent_nonce + expected.proof(b"parent", child_nonce, parent_nonce))
    proof = receive_exactly(connection, _PROOF_BYTES)
    if not hmac.compare_digest(proof, expected.proof(b"child", child_nonce, parent_nonce)):
        raise PeerError("it does not know this transfer's secret")
    connection.settimeout(None)


def _send(connection: socket.socket, content: bytes) -> None:
    try:
        connection.sendall(content)
    except OSError as error:
        raise PeerError(f"the connection broke: {error.strerror or error}") from error
