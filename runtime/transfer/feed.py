"""The source's side of one stream: reads each file once and sends it to all children."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from runtime.transfer.frames import CHUNK_BYTES, DATA, END, LOST, PROBE, Frame
from runtime.transfer.outlet import FileRange, OpenFile, Outlet, Zeros
from runtime.transfer.state import WantedFile

_READ_AHEAD_BYTES = 4 * CHUNK_BYTES
_PROBE_BYTES = 1 << 17


class Feed:
    """Sends files that a shared queue gives.

    Args:
        folder: where the source has the files.
        files: what the transfer brings.
        outlets: to the children.
        count: told how many bytes were handed on.
        report: told (kind, details) what went wrong.
    """

    def __init__(
        self,
        folder: Path,
        files: Sequence[WantedFile],
        outlets: Sequence[Outlet],
        count: Callable[[int], None],
        report: Callable[..., None],
    ) -> None:
        self._folder = folder
        self._files = files
        self._outlets = outlets
        self._count = count
        self._report = report

    def send_files(self, next_job: Callable[[], tuple[int, int] | None]) -> None:
        """Sends each file that `next_job` names from the offset that it names, then the end."""
        while (job := next_job()) is not None and self._somebody_listens():
            index, offset = job
            try:
                self._send_file(index, offset)
            except OSError as error:
                self._tell_lost(index, f"the source cannot read it: {error.strerror}")
        self._end()

    def send_probe(self, seconds: float, most_bytes: int) -> None:
        """Sends bytes that only measure, for so long and no more; a slow link must not carry all that waits by then."""
        end, left = time.monotonic() + seconds, most_bytes
        length = _PROBE_BYTES
        while left > 0 and time.monotonic() < end and self._somebody_listens():
            left -= length
            for outlet in self._outlets:
                outlet.put(Frame(PROBE, length=length).packed(), Zeros(length))
        for outlet in self._outlets if left > 0 else ():
            outlet.discard_waiting()
        self._end()

    def _somebody_listens(self) -> bool:
        return any(outlet.broken is None for outlet in self._outlets)

    def _send_file(self, index: int, start: int) -> None:
        file = self._files[index]
        source = OpenFile(f"{self._folder}/{file.path}")
        try:
            before = os.fstat(source.descriptor)
            if before.st_size != file.size_bytes:
                reason = f"the source has {before.st_size} bytes, the manifest says {file.size_bytes}"
                self._tell_lost(index, reason)
                return
            self._send_from(source, index, start, file.size_bytes)
        finally:
            source.release()

    def _send_from(self, source: OpenFile, index: int, start: int, end: int) -> None:
        if end - start > CHUNK_BYTES:
            os.posix_fadvise(source.descriptor, start, 0, os.POSIX_FADV_SEQUENTIAL)
            _read_ahead(source.descriptor, start, min(_READ_AHEAD_BYTES, end - start))
        offset = start
        while True:
            length = min(end, (offset // CHUNK_BYTES + 1) * CHUNK_BYTES) - offset
            if offset + _READ_AHEAD_BYTES < end:
                _read_ahead(source.descriptor, offset + _READ_AHEAD_BYTES, length)
            for outlet in self._outlets:
                outlet.put(Frame(DATA, index, offset, length).packed(), FileRange(source, offset, length))
            self._count(length)
            offset += length
            if offset >= end or not self._somebody_listens():
                return

    def _tell_lost(self, index: int, reason: str) -> None:
        text = reason.encode()
        for outlet in self._outlets:
            outlet.put(Frame(LOST, index, 0, len(text)).packed() + text)
        self._report("lost", index=index, reason=reason)

    def _end(self) -> None:
        for outlet in self._outlets:
            outlet.put(Frame(END).packed())


def _read_ahead(descriptor: int, offset: int, length: int) -> None:
    """Has the kernel read a range; where its last byte is in memory already, asking for all pages would only cost."""
    try:
        os.preadv(descriptor, [bytearray(1)], offset + length - 1, os.RWF_NOWAIT)
    except OSError:
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_WILLNEED)
