"""Replaces several files so that either all of them are changed or none."""

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Change:
    """One file's new content.

    Attributes:
        path: of the file; its folder is made where it is absent.
        content: what the file holds afterwards.
        mode: permissions; those of the file that is there, else 0644.
        link: what the path then leads to instead of being a file.
    """

    path: Path
    content: bytes = b""
    mode: int | None = None
    link: str | None = None


@dataclass
class _Progress:
    """What has to be taken back: folders made, temporary files, and the files replaced with their backups."""

    folders: list[Path] = field(default_factory=list)
    temporaries: list[Path] = field(default_factory=list)
    backups: dict[Path, Path] = field(default_factory=dict)
    replaced: list[Path] = field(default_factory=list)


def replace_all(changes: list[Change]) -> None:
    """Writes all files, each with one rename; takes every rename back if one of them fails.

    What can run out, such as disk space, is needed before the first rename: taking back is renames alone.

    Raises:
        OSError: a file could not be written; nothing has changed.
    """
    progress = _Progress()
    try:
        for change in changes:
            _write_beside(change, progress)
        for change, temporary in zip(changes, list(progress.temporaries), strict=True):
            if change.path.exists():
                _back_up(change.path, progress)
            temporary.replace(change.path)
            progress.replaced.append(change.path)
    except BaseException:
        _take_back(progress)
        raise
    for backup in progress.backups.values():
        with contextlib.suppress(OSError):  # everything is done: a backup that stays is no reason to say otherwise
            backup.unlink()


def _write_beside(change: Change, progress: _Progress) -> None:
    missing = [folder for folder in (change.path.parent, *change.path.parent.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir()
        progress.folders.append(folder)
    temporary = change.path.with_name(f".{change.path.name}.new")
    progress.temporaries.append(temporary)
    if change.link is not None:
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(change.link)
        return
    with temporary.open("wb") as file:
        file.write(change.content)
        file.flush()
        os.fsync(file.fileno())
    existing = change.path.stat() if change.path.exists() else None
    if existing is not None:
        os.chown(temporary, existing.st_uid, existing.st_gid)
    temporary.chmod(change.mode if change.mode is not None else existing.st_mode & 0o7777 if existing else 0o644)


def _back_up(path: Path, progress: _Progress) -> None:
    backup = path.with_name(f".{path.name}.old")
    backup.unlink(missing_ok=True)
    backup.hardlink_to(path)
    progress.backups[path] = backup


def _take_back(progress: _Progress) -> None:
    for path in reversed(progress.replaced):
        if path in progress.backups:
            progress.backups[path].replace(path)
        else:
            path.unlink()
    for leftover in (*progress.temporaries, *progress.backups.values()):
        leftover.unlink(missing_ok=True)
    for folder in reversed(progress.folders):
        with contextlib.suppress(OSError):
            folder.rmdir()
