"""Finds out what a receiver's folder holds of a list of files."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.common.file_hashes import sha256_of
from runtime.transfer.frames import CHUNK_BYTES
from runtime.transfer.kernel import give_back_cache
from runtime.transfer.state import SUM_LINE_BYTES, FolderState, Stamp, WantedFile, stamp_of

_READ_BYTES = 1 << 20
_BLOCK_BYTES = 4096


@dataclass
class Beginning:
    """The part of a file that is there: how many bytes, and the hash of just these."""

    size_bytes: int = 0
    digest: Any = field(default_factory=hashlib.sha256)


@dataclass
class Found:
    """What a folder holds.

    Attributes:
        missing: numbers of the files that are not there as they should be, with what is there of each.
        present_bytes: of whole files and of beginnings.
        missing_bytes: the rest.
        on_disk_bytes: what the missing bytes will occupy, file by file in whole blocks.
    """

    missing: dict[int, Beginning]
    present_bytes: int
    missing_bytes: int
    on_disk_bytes: int


def look(
    state: FolderState, files: list[WantedFile], deep: bool, resume: bool, still_wanted: Callable[[], None]
) -> Found:
    """Compares a folder with a list of files.

    A file that was verified and has not changed since counts by its stamp; one of the right size that nobody verified
    is hashed, several at once.

    Args:
        state: of the folder.
        files: what should be there.
        deep: whether files that were verified before are hashed again too.
        resume: whether beginnings are hashed up to the last prefix that is still right, so that they can be continued;
            otherwise what their record promises is counted.
        still_wanted: called again and again while files are hashed; may raise in order to stop.
    """
    known = {} if deep else state.verified()
    unknown = {i: file for i, file in enumerate(files) if not _as_known(state, file, known.get(file.path))}
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        suspects = [file for file in unknown.values() if _is_candidate(state, file)]
        right = _hash_suspects(pool, state, suspects, still_wanted)
        absent = {index: file for index, file in unknown.items() if file.path not in right}
        promised = {index: state.resumable_bytes(file) for index, file in absent.items()}
        missing = {index: Beginning(promised[index]) for index in absent}
        if resume:
            begun = [index for index in absent if promised[index]]
            jobs = {pool.submit(_usable_beginning, state, files[index], promised[index]): index for index in begun}
            for job in _as_they_end(jobs, still_wanted):
                missing[jobs[job]] = job.result()
    return _summed(files, missing)


def _as_known(state: FolderState, file: WantedFile, known: Stamp | None) -> bool:
    if known is None or known.sha256 != file.sha256 or known.size_bytes != file.size_bytes:
        return False
    try:
        return stamp_of(state.target(file), file.sha256) == known
    except OSError:
        return False


def _is_candidate(state: FolderState, file: WantedFile) -> bool:
    try:
        found = os.stat(state.target(file))  # noqa: PTH116 - as in stamp_of
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == file.size_bytes


def _hash_suspects(
    pool: ThreadPoolExecutor, state: FolderState, suspects: list[WantedFile], still_wanted: Callable[[], None]
) -> set[str]:
    """Hashes files of the right size and records which are right and which are not. Returns the paths of the right."""
    jobs = {pool.submit(_right_stamp, state, file): file for file in suspects}
    right = {}
    for job in _as_they_end(jobs, still_wanted):
        stamp = job.result()
        if stamp is not None:
            right[jobs[job].path] = stamp
    wrong = [file.path for file in suspects if file.path not in right]
    if right:
        state.remember(right)
    if wrong:
        state.forget(wrong)
    return set(right)


def _right_stamp(state: FolderState, file: WantedFile) -> Stamp | None:
    """Returns the stamp of a file with the right content; one that changes while it is read is not right."""
    target = state.target(file)
    try:
        before = stamp_of(target, file.sha256)
        return before if sha256_of(Path(target)) == file.sha256 and stamp_of(target, file.sha256) == before else None
    except OSError:
        return None


def _usable_beginning(state: FolderState, file: WantedFile, promised: int) -> Beginning:
    """Hashes what an interrupted transfer left, prefix by prefix, and cuts it where it stops being right."""
    beginning = Beginning()
    with Path(state.part(file)).open("rb", buffering=0) as part, state.sums(file).open("r+b") as sums:
        while beginning.size_bytes < promised:
            longer = beginning.digest.copy()
            length = _hash_into(
                longer, part.fileno(), beginning.size_bytes, min(CHUNK_BYTES, promised - beginning.size_bytes)
            )
            if length < CHUNK_BYTES or sums.read(SUM_LINE_BYTES) != f"{longer.hexdigest()}\n".encode():
                break
            beginning = Beginning(beginning.size_bytes + length, longer)
        sums.truncate(beginning.size_bytes // CHUNK_BYTES * SUM_LINE_BYTES)
        give_back_cache(part.fileno())
    return beginning


def _hash_into(digest: Any, descriptor: int, offset: int, length: int) -> int:
    buffer = memoryview(bytearray(min(_READ_BYTES, length)))
    done = 0
    while done < length:
        count = os.preadv(descriptor, [buffer[: length - done]], offset + done)
        if count == 0:
            break
        digest.update(buffer[:count])
        done += count
    return done


def _as_they_end(jobs: Iterable["Future[Any]"], still_wanted: Callable[[], None]) -> Iterable["Future[Any]"]:
    waiting = set(jobs)
    try:
        while waiting:
            done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
            yield from done
            still_wanted()
    finally:
        for job in waiting:
            job.cancel()


def _summed(files: list[WantedFile], missing: dict[int, Beginning]) -> Found:
    total = sum(file.size_bytes for file in files)
    absent = {index: files[index].size_bytes - there.size_bytes for index, there in missing.items()}
    missing_bytes = sum(absent.values())
    on_disk = sum(-(-length // _BLOCK_BYTES) * _BLOCK_BYTES for length in absent.values())
    return Found(missing, total - missing_bytes, missing_bytes, on_disk)
