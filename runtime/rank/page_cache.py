"""Gives the checkpoint's pages back while an engine loads it.

On unified memory the page cache stands in the way of the weights that were read through it. The sources drop all
caches as root, above a threshold or each minute (facts/seed-repos.md section 4); one of them drops only the pages of
the checkpoint, which needs no right on the host and takes nothing from anybody else. A container may do only that.
"""

import os
import threading
from pathlib import Path

from runtime.rank.meminfo import MemoryFigures
from runtime.rank.request import PageCache


class PageCacheRelease:
    """Runs while the engine starts."""

    def __init__(self, settings: PageCache) -> None:
        """Starts, if the settings say so."""
        self._settings = settings
        self._figures = MemoryFigures()
        self._ended = threading.Event()
        if settings.release != "never":
            threading.Thread(target=self._run, name="page-cache", daemon=True).start()

    def end(self) -> None:
        """Stops: while it serves, an engine may need pages of its files."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._settings.interval_seconds):
            if self._settings.release == "always" or self._is_above_threshold():
                release(self._settings.folders)

    def _is_above_threshold(self) -> bool:
        return self._figures.read_bytes(b"\nCached:") > self._settings.threshold_bytes


def release(folders: tuple[str, ...]) -> int:
    """Gives back the clean pages of all files below the folders and returns how many files there were."""
    files = [path for folder in folders for path in sorted(Path(folder).rglob("*")) if path.is_file()]
    for path in files:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    return len(files)
