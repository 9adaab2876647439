"""The IPv4 addresses of this node's interfaces, asked of the kernel itself: images have no `ip`."""

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_ASK_ADDRESSES, _AN_ADDRESS, _END, _ERROR = 22, 20, 3, 2  # RTM_GETADDR, RTM_NEWADDR, NLMSG_DONE, NLMSG_ERROR
_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_LOCAL = 2  # IFA_LOCAL
_HEADER, _ADDRESS, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBI"), struct.Struct("=HH")
_ANSWER_BYTES = 1 << 16
_ANSWER_SECONDS = 5.0


@dataclass(frozen=True)
class InterfaceAddress:
    """One IPv4 address of an interface and the length of its network's prefix in bits."""

    interface: str
    address: str
    prefix_bits: int


def read_addresses() -> tuple[InterfaceAddress, ...]:
    """Returns all IPv4 addresses of the network that this process sees.

    Raises:
        OSError: the kernel does not answer.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_ANSWER_SECONDS)
        body = _ADDRESS.pack(socket.AF_INET, 0, 0, 0, 0)
        kernel.send(_HEADER.pack(_HEADER.size + len(body), _ASK_ADDRESSES, _REQUEST_DUMP, 1, 0) + body)
        found: list[InterfaceAddress] = []
        while True:
            for kind, message in _messages(kernel.recv(_ANSWER_BYTES)):
                if kind == _END:
                    return tuple(found)
                if kind == _ERROR:
                    raise OSError(-struct.unpack_from("=i", message)[0], "the kernel refuses to list addresses")
                if kind == _AN_ADDRESS:
                    found.extend(_parse(message))


def _messages(answer: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position + _HEADER.size <= len(answer):
        length, kind, *_ = _HEADER.unpack_from(answer, position)
        yield kind, answer[position + _HEADER.size : position + length]
        position += _aligned(length)


def _parse(message: bytes) -> Iterator[InterfaceAddress]:
    _, prefix_bits, _, _, index = _ADDRESS.unpack_from(message)
    position = _ADDRESS.size
    while position + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, position)
        value = message[position + _ATTRIBUTE.size : position + length]
        position += _aligned(length)
        if kind == _LOCAL:
            address = socket.inet_ntoa(value)
            try:
                yield InterfaceAddress(socket.if_indextoname(index), address, prefix_bits)
            except OSError:
                continue  # the interface went away after the kernel had answered


def _aligned(length: int) -> int:
    return (length + 3) & ~3
