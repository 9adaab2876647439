"""What a receiver remembers of a folder, beside the folder: what was verified, and beginnings to go on from.

For a folder `NAME` this is `.NAME.transfer/` in the same parent: `lock`, `verified` (a line of JSON for each file whose
content was hashed) and `parts/` (two files for each file on its way: the bytes, and the SHA-256 of each prefix that
ends at a multiple of CHUNK_BYTES, one line each).
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from runtime.node.files import sync_folder
from runtime.transfer.errors import TransferError
from runtime.transfer.frames import CHUNK_BYTES

SUM_LINE_BYTES = 65
_STATE_SUFFIX = ".transfer"


@dataclass(frozen=True)
class WantedFile:
    """A file as the manifest has it: relative path, size in bytes, SHA-256 in hexadecimal digits.

    Raises:
        TransferError: the path leads out of the folder.
    """

    path: str
    size_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        if self.path.startswith("/") or not {"", ".", ".."}.isdisjoint(self.path.split("/")):
            raise TransferError(f"{self.path!r} leads out of the folder: a path in a manifest is relative")

    @cached_property
    def part_name(self) -> str:
        """The name under which it grows; another content of the same path grows under another name."""
        return hashlib.sha256(os.fsencode(f"{self.path}\0{self.sha256}")).hexdigest()[:32]


class Stamp(NamedTuple):
    """What tells that a file is still the one whose content was hashed."""

    size_bytes: int
    modified_ns: int
    inode: int
    sha256: str


_NOT_RIGHT = Stamp(-1, -1, -1, "")


def stamp_of(path: str, sha256: str) -> Stamp:
    """Returns the stamp of a file whose content has this hash."""
    found = os.stat(path)  # noqa: PTH116 - pathlib takes longer than the kernel, tens of thousands of times
    return Stamp(found.st_size, found.st_mtime_ns, found.st_ino, sha256)


class FolderState:
    """The state beside one receiving folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._state = folder.with_name(f".{folder.name}{_STATE_SUFFIX}")
        self._lock_file = self._state / "lock"
        self._parts = self._state / "parts"
        self._verified = self._state / "verified"
        self._lock: int | None = None
        self._safe_parents: set[str] = set()

    @property
    def holds_files(self) -> bool:
        """Whether anything is in place or has begun to arrive."""
        return self.folder.exists() or any(self._parts.glob("*"))

    def try_lock(self) -> bool:
        """Takes the folder for one transfer unless another one has it; ends with this process and its children.

        Raises:
            TransferError: the folder cannot be made, or what is renamed into it would cross file systems.
        """
        if not self._take():
            return False
        with _making():
            self._parts.mkdir(exist_ok=True)
            self.folder.mkdir(parents=True, exist_ok=True)
        if self._parts.stat().st_dev != self.folder.stat().st_dev:
            raise TransferError(
                f"{self.folder} is on another file system than its parent, so that files cannot be renamed into it in "
                f"one step: choose a folder inside it"
            )
        return True

    def unlock(self) -> None:
        """Gives the folder up."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def discard(self) -> bool:
        """Removes the folder and what is beside it, unless a transfer has it; tells whether they are gone.

        Raises:
            TransferError: its lock cannot be made.
            OSError: something cannot be removed.
        """
        if not self._take():
            return False
        try:
            for folder in (self.folder, self._parts):
                if folder.exists():
                    shutil.rmtree(folder)
            for path in self._state.iterdir():
                if path != self._lock_file:
                    path.unlink()
            # Last, since whoever comes from then on makes another lock and begins.
            self._lock_file.unlink()
            with contextlib.suppress(OSError):
                self._state.rmdir()
        finally:
            self.unlock()
        return True

    def _take(self) -> bool:
        """Takes the lock unless another one has it."""
        while self._lock is None:
            with _making():
                self._state.mkdir(parents=True, exist_ok=True)
            try:
                lock = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:
                continue  # the folder was discarded at this moment
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                return False
            if _is_file(self._lock_file, lock):
                self._lock = lock
            else:
                os.close(lock)  # it was discarded between opening and locking
        return True

    def target(self, file: WantedFile) -> str:
        """Returns where the file belongs."""
        return f"{self.folder}/{file.path}"

    def prepared_target(self, file: WantedFile) -> str:
        """Makes the folder of a file and returns where the file belongs.

        Raises:
            TransferError: a link on the way leads out of the folder.
        """
        target = self.target(file)
        parent = target.rpartition("/")[0]
        if parent not in self._safe_parents:
            Path(parent).mkdir(parents=True, exist_ok=True)
            if not Path(parent).resolve().is_relative_to(self.folder.resolve()):
                raise TransferError(f"{parent} is or goes through a link out of {self.folder}: remove the link")
            self._safe_parents.add(parent)
        return target

    def part(self, file: WantedFile) -> str:
        """Returns where the file grows."""
        return f"{self._parts}/{file.part_name}"

    def sums(self, file: WantedFile) -> Path:
        """Returns where the prefix hashes of the growing file are."""
        return self._parts / f"{file.part_name}.sums"

    def remove_part(self, file: WantedFile) -> None:
        """Removes what is there of the growing file."""
        Path(self.part(file)).unlink()
        self.remove_sums(file)

    def remove_sums(self, file: WantedFile) -> None:
        """Removes the prefix hashes; a file that is shorter than the first prefix has none."""
        if file.size_bytes >= CHUNK_BYTES:
            self.sums(file).unlink(missing_ok=True)

    def remove_other_parts(self, files: list[WantedFile]) -> None:
        """Removes beginnings of files that nobody asks for any more, or left over beside ones in place."""
        paths = list(self._parts.iterdir())
        wanted = {file.part_name for file in files} if paths else set()
        for path in paths:
            if path.stem not in wanted:
                path.unlink()

    def resumable_bytes(self, file: WantedFile) -> int:
        """Returns what the prefix hashes promise, without looking at the content."""
        if file.size_bytes < CHUNK_BYTES:
            return 0
        try:
            promised = self.sums(file).stat().st_size // SUM_LINE_BYTES * CHUNK_BYTES
            return min(promised, Path(self.part(file)).stat().st_size, file.size_bytes)
        except FileNotFoundError:
            return 0

    def verified(self) -> dict[str, Stamp]:
        """Returns what was hashed and found right, by path; a line that a power cut tore is skipped."""
        found = {}
        try:
            lines = self._verified.read_bytes().splitlines()
        except FileNotFoundError:
            return {}
        for line in lines:
            entry = _entry(line)
            if entry:
                found[entry[0]] = entry[1]
        return found

    def remember(self, stamps: dict[str, Stamp]) -> None:
        """Adds files that were hashed and found right, in one write, so that several processes may do it."""
        text = "".join(map(_line, stamps.items()))
        self._state.mkdir(exist_ok=True)
        descriptor = os.open(self._verified, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            # A line that was torn by a power cut must not swallow the next one.
            os.write(descriptor, b"\n" + text.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def forget(self, paths: list[str]) -> None:
        """Takes back that these files are right."""
        self.remember(dict.fromkeys(paths, _NOT_RIGHT))

    def compact(self) -> None:
        """Rewrites the record of what was verified where most of its lines are superseded."""
        known = self.verified()
        if not known or self._verified.stat().st_size < 2 * sum(len(line) for line in map(_line, known.items())) + 4096:
            return
        temporary = self._verified.with_name(f"verified.{os.getpid()}")
        with temporary.open("w") as output:
            output.writelines(map(_line, known.items()))
            output.flush()
            os.fsync(output.fileno())
        temporary.replace(self._verified)
        sync_folder(self._state)

    def free_bytes(self) -> int:
        """Returns what may still be written."""
        return shutil.disk_usage(self._state).free


def transfer_folders(parent: Path) -> list[Path]:
    """Returns the folders in `parent` into which a transfer was begun, whether or not anything is in place there."""
    names = [path.name for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
    states = {name[1 : -len(_STATE_SUFFIX)] for name in names if name.startswith(".") and name.endswith(_STATE_SUFFIX)}
    return [parent / name for name in sorted(states | {name for name in names if not name.startswith(".")})]


@contextlib.contextmanager
def _making() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TransferError(f"cannot make {error.filename}: {error.strerror}") from error


def _is_file(path: Path, descriptor: int) -> bool:
    """Tells whether an open file is still the one of this path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _entry(line: bytes) -> tuple[str, Stamp] | None:
    try:
        path, *stamp = json.loads(line)
        return path, Stamp(*stamp)
    except (ValueError, TypeError):
        return None


def _line(entry: tuple[str, Stamp]) -> str:
    path, stamp = entry
    return f"{json.dumps([path, *stamp])}\n"
