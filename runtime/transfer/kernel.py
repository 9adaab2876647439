"""Calls of the Linux kernel that Python's standard library does not have, or has only on some systems."""

import ctypes
import os
import socket
import struct

_LIBC = ctypes.CDLL(None, use_errno=True)


def sync_file_system(descriptor: int) -> None:
    """Waits until all that was written to the file system of `descriptor` is on disk: one call for many small files."""
    if _LIBC.syncfs(descriptor):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def give_back_cache(descriptor: int) -> None:
    """Gives the page cache of a file back; what is not on disk yet stays."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def limit_silence(connection: socket.socket, seconds: float) -> None:
    """Makes a send fail when the other end takes nothing for so long, and a receive when its machine is gone."""
    whole = int(seconds)
    connection.setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", whole, int((seconds - whole) * 1e6))
    )
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, whole // 2))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, whole // 6))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
