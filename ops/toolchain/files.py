"""Files that other processes may look at at any time: written whole or not at all, one writer at a time."""

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds a lock file's lock. The system gives it back if this process dies.

    Args:
        path: The lock file; it stays, empty.
        waiting: Called once if another process holds the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Gives a folder to fill, which takes the place of `target` as a whole at the end, and is removed after an error.

    Callers hold a lock, so that only one of them does this at a time; what is left of one that was killed is removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for leftover in target.parent.glob(f".{target.name}-*/"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as room:
        filling = Path(room) / "new"
        filling.mkdir()
        yield filling
        if target.exists() or target.is_symlink():
            target.rename(Path(room) / "old")
        filling.rename(target)


def lock_of(folder: Path) -> Path:
    """Returns the lock file for making a folder."""
    return folder.with_name(f".{folder.name}.lock")


def link_or_copy(source: Path, target: Path) -> None:
    """Makes `target` the same file as `source`, or a copy where links are not possible."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def read_json(path: Path) -> dict[str, Any]:
    """Returns a JSON object, or an empty one if the file is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes a JSON object; readers see the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        json.dump(content, file, indent=2, sort_keys=True)
    Path(file.name).replace(path)


def is_program(path: Path) -> bool:
    """Reports whether this is a file that can be executed."""
    return path.is_file() and os.access(path, os.X_OK)
