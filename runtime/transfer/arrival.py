"""A file on its way into a folder."""

import errno
import fcntl
import os

from runtime.transfer.inspection import Beginning
from runtime.transfer.kernel import give_back_cache
from runtime.transfer.state import FolderState, WantedFile

SMALL_BYTES = 1 << 20
"""A file below this goes through the page cache: many of them are synced at once."""

_ALIGNMENT_BYTES = 1 << 16
"""No kernel has larger pages and no file system larger blocks that a direct write must keep to."""


class Arrival:
    """A file on its way: where it grows, how far it is, and the hash so far.

    It is written past the page cache where the file system can do that: a node that then loads the model has its memory
    for that, and the copy costs no time (bench/transfer.py).

    Attributes:
        index: its number in the list of files.
        file: what it shall be.
        position: how many bytes have come.
        digest: the hash of these.
    """

    def __init__(self, index: int, file: WantedFile, state: FolderState, beginning: Beginning) -> None:
        self.index = index
        self.file = file
        self.position = beginning.size_bytes
        self.digest = beginning.digest
        self._sums = state.sums(file)
        self._is_direct = file.size_bytes >= SMALL_BYTES
        self._descriptor = self._opened(state.part(file))
        self._prefixes: int | None = None

    def write(self, content: memoryview, offset: int) -> None:
        """Writes a part that begins at a multiple of the alignment; only the end of the file may end elsewhere."""
        direct = len(content) - len(content) % _ALIGNMENT_BYTES if self._is_direct else 0
        try:
            self._write(content[:direct], offset)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            direct = 0
        if direct < len(content):
            self._go_through_the_cache()
            self._write(content[direct:], offset + direct)

    def record_prefix(self, sha256: str) -> None:
        """Notes the hash of all bytes so far, which end at a multiple of CHUNK_BYTES."""
        if self._prefixes is None:
            self._prefixes = os.open(self._sums, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(self._prefixes, f"{sha256}\n".encode())

    def sync(self) -> None:
        """Waits until all that was written is on disk, and gives back what page cache it took."""
        os.fsync(self._descriptor)
        give_back_cache(self._descriptor)

    def close(self) -> None:
        """Gives up its descriptors; the bytes stay."""
        os.close(self._descriptor)
        if self._prefixes is not None:
            os.close(self._prefixes)
            self._prefixes = None

    def _opened(self, path: str) -> int:
        flags = os.O_RDWR | os.O_CREAT
        if self._is_direct:
            try:
                return os.open(path, flags | os.O_DIRECT, 0o644)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._is_direct = False
        return os.open(path, flags, 0o644)

    def _go_through_the_cache(self) -> None:
        if self._is_direct:
            self._is_direct = False
            flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)

    def _write(self, content: memoryview, offset: int) -> None:
        done = 0
        while done < len(content):
            done += os.pwrite(self._descriptor, content[done:], offset + done)
