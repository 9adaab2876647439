"""Memory through which bytes pass from a connection to the disk and to the children, taken once and used again."""

import contextlib
import mmap
import queue
import socket

from runtime.transfer.shared import Shared

BLOCK_BYTES = 2 << 20


class Block(Shared):
    """A piece of memory that begins at a page, as direct writes need it; free again after its last user.

    Attributes:
        memory: all of it.
        length: how many bytes of it are filled.
    """

    def __init__(self, memory: memoryview, free: "queue.SimpleQueue[Block]") -> None:
        super().__init__()
        self.memory = memory
        self.length = 0
        self._free = free

    @property
    def content(self) -> memoryview:
        """What it is filled with."""
        return self.memory[: self.length]

    def send(self, connection: socket.socket) -> None:
        """Sends what it is filled with."""
        connection.sendall(self.content)

    def _give_up(self) -> None:
        self._users = 1
        self._free.put(self)


class BlockPool:
    """A number of blocks; who wants one waits until one is free, so that nobody runs far ahead of the slowest."""

    def __init__(self, blocks: int) -> None:
        self._free: queue.SimpleQueue[Block] = queue.SimpleQueue()
        memory = _in_large_pages(blocks * BLOCK_BYTES)
        for start in range(0, len(memory), BLOCK_BYTES):
            self._free.put(Block(memory[start : start + BLOCK_BYTES], self._free))

    def take(self) -> Block:
        """Returns a block with one user, who releases it."""
        return self._free.get()


def _in_large_pages(length: int) -> memoryview:
    """Returns new memory, in pages that a direct write takes fewer of, where the kernel has them."""
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)
