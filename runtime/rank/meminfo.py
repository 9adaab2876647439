"""Figures of /proc/meminfo, read without new memory each time."""

import os

_BUFFER_BYTES = 8192
PATH = "/proc/meminfo"


class MemoryFigures:
    """Reads again and again from one open file into one buffer."""

    def __init__(self, path: str = PATH) -> None:
        """Opens the file, so that reading it later needs nothing."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._buffer = bytearray(_BUFFER_BYTES)
        self._buffers = [self._buffer]

    def read_bytes(self, key: bytes) -> int:
        """Returns one figure in bytes.

        Args:
            key: such as `b"MemAvailable:"`; the first of the file needs no more than that.
        """
        size = os.preadv(self._descriptor, self._buffers, 0)
        at = self._buffer.find(key, 0, size)
        if at < 0:
            raise ValueError(f"/proc/meminfo has no {key.decode()}")
        value = 0
        for position in range(at + len(key), size):
            digit = self._buffer[position] - 48
            if 0 <= digit <= 9:
                value = value * 10 + digit
            elif value:
                break
        return value * 1024
