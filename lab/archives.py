"""A layer of an image, made of a root folder without any Docker engine."""

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_FIXED_TIME = 0
# The engine provides what is in them.
_EMPTY_FOLDERS = frozenset({"dev", "proc", "sys", "run", "tmp"})


class _HashingWriter(io.RawIOBase):
    """Passes bytes on to a file and hashes them."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._hash.update(data)
        return self._file.write(data)

    @property
    def hexadecimal(self) -> str:
        """SHA-256 of all that was written."""
        return self._hash.hexdigest()


def fixed_time(time: float, made_after: float) -> int:
    """Returns the time that a file gets in an archive, which does not tell when the archive was made.

    A file from a package keeps the package's time, which compiled Python files refer to; one that was made while
    installing gets a fixed time.

    Args:
        time: the file's own time.
        made_after: when installing began.
    """
    return _FIXED_TIME if time >= made_after else int(time)


def _paths_below(root: Path) -> Iterator[Path]:
    """Walks a root folder in an order that depends on names alone."""
    for folder, folders, files in os.walk(root):
        folders.sort()
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        yield from sorted(Path(folder) / name for name in [*folders, *files])
        folders[:] = [] if Path(folder).relative_to(root).as_posix() in _EMPTY_FOLDERS else folders
        folders[:] = [name for name in folders if name not in links]


def _member(tar: tarfile.TarFile, path: Path, root: Path, made_after: float) -> tarfile.TarInfo | None:
    """Describes a file; none for a socket."""
    member = tar.gettarinfo(path, arcname=path.relative_to(root).as_posix())
    if member is None:
        return None
    member.uname = member.gname = ""
    member.mtime = fixed_time(member.mtime, made_after)
    return member


def _add(tar: tarfile.TarFile, path: Path, member: tarfile.TarInfo) -> None:
    if member.isreg():
        with path.open("rb") as content:
            tar.addfile(member, content)
    else:
        tar.addfile(member)


def write_layer(root: Path, target: Path, made_after: float) -> str:
    """Writes a root folder as one layer.

    Args:
        root: the root folder.
        target: the layer's file.
        made_after: files that were changed later get a fixed time.

    Returns:
        The layer's diff id ("sha256:" and 64 hexadecimal digits).
    """
    with target.open("wb") as file:
        writer = _HashingWriter(file)
        with tarfile.open(fileobj=writer, mode="w|", format=tarfile.GNU_FORMAT, bufsize=1 << 20) as tar:
            for path in _paths_below(root):
                if path.relative_to(root).parts[0] in _EMPTY_FOLDERS and path.parent != root:
                    continue
                member = _member(tar, path, root, made_after)
                if member is not None:
                    _add(tar, path, member)
        return f"sha256:{writer.hexadecimal}"
