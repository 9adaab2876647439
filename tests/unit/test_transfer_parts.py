"""Parts of a transfer by themselves: blocks of memory, a file that is written past the page cache, what follows."""

import errno
import fcntl
import mmap
import os
import queue
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.transfer.agent import _shared_queue
from runtime.transfer.arrival import SMALL_BYTES, Arrival
from runtime.transfer.blocks import BLOCK_BYTES, BlockPool
from runtime.transfer.follower import Follower
from runtime.transfer.inspection import Beginning
from runtime.transfer.state import FolderState, WantedFile

ALIGNMENT_BYTES = 1 << 16
JOB = struct.Struct("=IQ")
SIZES = [0, 1, SMALL_BYTES - 1, SMALL_BYTES, SMALL_BYTES + 1, BLOCK_BYTES + ALIGNMENT_BYTES, 2 * BLOCK_BYTES + 4097]


def no_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that does not open files for direct writes."""
    real = os.open

    def opened(path: str, flags: int, mode: int = 0o777, **more: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", opened)


def no_direct_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that opens them and then refuses the write, as one with larger blocks does."""
    real = os.pwrite

    def written(descriptor: int, content: memoryview, offset: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(descriptor, content, offset)

    monkeypatch.setattr(os, "pwrite", written)


def as_it_is(_: pytest.MonkeyPatch) -> None:
    """The file system under the tests."""


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("file_system", [as_it_is, no_flag, no_direct_write])
def test_a_file_is_written_as_it_came_whatever_the_file_system_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_system: Callable[[pytest.MonkeyPatch], None], size: int
) -> None:
    file_system(monkeypatch)
    content = os.urandom(size)
    arrival = new_arrival(tmp_path, size)
    write(arrival, content)
    arrival.sync()
    arrival.close()
    assert part_of(tmp_path, size).read_bytes() == content


def test_a_large_file_takes_no_page_cache(tmp_path: Path) -> None:
    size = 4 * BLOCK_BYTES
    arrival = new_arrival(tmp_path, size)
    write(arrival, os.urandom(size))
    with part_of(tmp_path, size).open("rb") as part:
        for offset in range(0, size, BLOCK_BYTES):
            with pytest.raises(BlockingIOError):
                os.preadv(part.fileno(), [bytearray(1)], offset, os.RWF_NOWAIT)
    arrival.close()


def test_a_write_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    arrival = new_arrival(tmp_path, BLOCK_BYTES)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        write(arrival, bytes(BLOCK_BYTES))
    arrival.close()


def test_a_block_is_free_again_after_its_last_user() -> None:
    pool = BlockPool(1)
    block = pool.take()
    block.share()
    taken: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=lambda: taken.put(pool.take()), daemon=True).start()
    block.release()
    with pytest.raises(queue.Empty):
        taken.get(timeout=0.2)
    block.release()
    assert taken.get(timeout=10) is block


def test_after_a_failure_what_follows_is_left_and_the_failure_told_once() -> None:
    worked: list[int] = []
    left: list[int] = []
    told: list[str] = []

    def work(item: int) -> None:
        worked.append(item)
        if item == 2:
            raise ValueError("the second")

    follower = Follower(work, left.append, lambda error: told.append(str(error)), 1)
    for item in range(1, 6):
        follower.put(item)
    follower.finish()
    assert (worked, left, told) == ([1, 2], [3, 4, 5], ["the second"])


def wanted(size: int) -> WantedFile:
    return WantedFile("model.safetensors", size, "0" * 64)


def new_arrival(folder: Path, size: int) -> Arrival:
    state = FolderState(folder / "model")
    assert state.try_lock()
    return Arrival(0, wanted(size), state, Beginning())


def part_of(folder: Path, size: int) -> Path:
    return Path(FolderState(folder / "model").part(wanted(size)))


def write(arrival: Arrival, content: bytes) -> None:
    """Writes block by block, from memory that begins at a page."""
    memory = mmap.mmap(-1, BLOCK_BYTES)
    for offset in range(0, len(content), BLOCK_BYTES):
        block = content[offset : offset + BLOCK_BYTES]
        memory[: len(block)] = block
        arrival.write(memoryview(memory)[: len(block)], offset)


def test_processes_that_share_jobs_do_each_once() -> None:
    jobs = [(number, number << 33) for number in range(20_000)]
    next_job = _shared_queue(jobs)
    reading, writing = os.pipe()
    for _ in range(4):
        if os.fork() == 0:
            while (job := next_job()) is not None:
                os.write(writing, JOB.pack(*job))
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        done = stream.read()
    for _ in range(4):
        os.wait()
    assert sorted(JOB.iter_unpack(done)) == jobs
