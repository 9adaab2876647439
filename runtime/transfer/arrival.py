"""A file on its way into a folder."""

import os

from runtime.transfer.inspection import Beginning
from runtime.transfer.outlet import OpenFile
from runtime.transfer.state import FolderState, WantedFile


class Arrival:
    """A file on its way: where it grows, how far it is, and the hash so far."""

    def __init__(self, index: int, file: WantedFile, state: FolderState, beginning: Beginning) -> None:
        self.index = index
        self.file = file
        self.position = beginning.size_bytes
        self.digest = beginning.digest
        self._sums = state.sums(file)
        self.open_file = OpenFile(state.part(file), os.O_RDWR | os.O_CREAT)
        self._prefixes: int | None = None

    def record_prefix(self) -> None:
        """Notes the hash of all bytes so far, which end at a multiple of CHUNK_BYTES."""
        if self._prefixes is None:
            self._prefixes = os.open(self._sums, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(self._prefixes, f"{self.digest.hexdigest()}\n".encode())

    def close(self) -> None:
        """Gives up its descriptors; the bytes stay."""
        self.open_file.release()
        if self._prefixes is not None:
            os.close(self._prefixes)
            self._prefixes = None
