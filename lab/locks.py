"""Lock files that the kernel releases when their holders are gone, however they ended."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.errors import LabError

_POLL_SECONDS = 0.1


def _attempt(handle: int, operation: int) -> bool:
    try:
        fcntl.flock(handle, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(handle: int, operation: int, patience_seconds: float) -> bool:
    end = time.monotonic() + patience_seconds
    while not _attempt(handle, operation):
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    # Programs that are run meanwhile keep the lock until they end: lab.commands.run.
    os.set_inheritable(handle, True)
    return handle


@contextmanager
def try_exclusive(path: Path, patience_seconds: float = 0) -> Iterator[bool]:
    """Takes a lock for one holder alone; yields whether it was free within the patience."""
    handle = _open(path)
    try:
        yield _wait(handle, fcntl.LOCK_EX, patience_seconds)
    finally:
        os.close(handle)


@contextmanager
def exclusive(path: Path, what: str, patience_seconds: float) -> Iterator[None]:
    """Holds a lock alone.

    Raises:
        LabError: another process still holds it after the patience.
    """
    with try_exclusive(path, patience_seconds) as taken:
        if not taken:
            raise LabError(what, f"another process holds {path}", "Wait until it has ended (fuser names it).")
        yield


@contextmanager
def shared(path: Path) -> Iterator[None]:
    """Holds a lock together with others that hold it shared."""
    handle = _open(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)
