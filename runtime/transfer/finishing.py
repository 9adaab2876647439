"""Puts files that have arrived in place: whole and on disk first, then under their name, then on record."""

import os
from collections.abc import Callable
from pathlib import Path

from runtime.node.files import sync_folder
from runtime.transfer.arrival import SMALL_BYTES, Arrival
from runtime.transfer.kernel import sync_file_system
from runtime.transfer.state import FolderState, WantedFile, stamp_of

_BATCH_FILES = 4000
_BATCH_BYTES = 256 << 20


class Finisher:
    """Finishes the files of one connection; small ones share one sync of the file system."""

    def __init__(self, state: FolderState, report: Callable[..., None]) -> None:
        self._state = state
        self._report = report
        self._small: list[WantedFile] = []
        self._small_bytes = 0
        self._folders: set[str] = set()

    def take(self, arrival: Arrival) -> None:
        """Finishes a file if its hash is right; a wrong one is removed and reported."""
        file = arrival.file
        if arrival.digest.hexdigest() != file.sha256:
            arrival.close()
            self._state.remove_part(file)
            self._report("wrong", index=arrival.index)
        elif file.size_bytes < SMALL_BYTES:
            arrival.close()
            self._small.append(file)
            self._small_bytes += file.size_bytes
            if len(self._small) >= _BATCH_FILES or self._small_bytes >= _BATCH_BYTES:
                self.flush()
        else:
            arrival.sync()
            arrival.close()
            self._put_in_place([file])

    def flush(self) -> None:
        """Finishes the small files that wait and makes all renames durable."""
        if self._small:
            folder = os.open(self._state.folder, os.O_RDONLY)
            try:
                sync_file_system(folder)
            finally:
                os.close(folder)
            self._put_in_place(self._small)
            self._small, self._small_bytes = [], 0
        for folder in sorted(self._folders):
            sync_folder(Path(folder))
        self._folders.clear()

    def _put_in_place(self, files: list[WantedFile]) -> None:
        stamps = {}
        for file in files:
            target = self._state.prepared_target(file)
            os.replace(self._state.part(file), target)  # noqa: PTH105 - pathlib takes longer than the kernel
            self._state.remove_sums(file)
            stamps[file.path] = stamp_of(target, file.sha256)
            self._add_folders(target.rpartition("/")[0])
        self._state.remember(stamps)

    def _add_folders(self, folder: str) -> None:
        while folder not in self._folders:
            self._folders.add(folder)
            if folder == str(self._state.folder):
                return
            folder = folder.rpartition("/")[0]
