"""Checks of the disk: room, kind of file system, and who owns what."""

import os
from collections.abc import Iterator
from pathlib import Path

from runtime.doctor.look import Found, Look

_GIB = 1 << 30
_LEAST_FREE_BYTES = 5 * _GIB
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "fuse.s3fs")
_FORGETFUL = ("tmpfs", "ramfs")
_MOST_SHOWN = 3


def room(look: Look) -> Iterator[Found]:
    """The disk of our folder must have room for an image, logs and what the engine compiles."""
    folder = _existing(look)
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    if free < _LEAST_FREE_BYTES:
        read = f"{look.request['storage_folder']} has {free / _GIB:.1f} GiB free"
        yield Found("disk-full", read, {"folder": look.request["storage_folder"]})


def file_system(look: Look) -> Iterator[Found]:
    """Weights must lie on a disk of the node itself."""
    folder = look.request["storage_folder"]
    mounts = [line.split()[1:3] for line in look.needed("/proc/self/mounts").splitlines()]
    holding = [(place, kind) for place, kind in mounts if Path(folder).is_relative_to(_unescaped(place))]
    if not holding:
        return
    place, kind = max(reversed(holding), key=lambda found: len(found[0]))
    if kind in _REMOTE:
        yield Found("weights-on-the-network", f"{folder} lies on {place}, which is {kind}", {"folder": folder})
    elif kind in _FORGETFUL:
        yield Found("weights-in-memory", f"{folder} lies on {place}, which is {kind}", {"folder": folder})


def ownership(look: Look) -> Iterator[Found]:
    """Our folder and what it holds must belong to the account that the controller logs in as."""
    top = look.root / look.request["storage_folder"].lstrip("/")
    if not top.is_dir():
        return
    own = look.request.get("user_id", os.geteuid())
    foreign = [path for path in (top, *sorted(top.glob("*")), *sorted(top.glob("*/*"))) if path.lstat().st_uid != own]
    if foreign:
        names = ", ".join(str(path.relative_to(look.root)) for path in foreign[:_MOST_SHOWN])
        read = f"{len(foreign)} of another user, such as /{names}"
        yield Found("cache-of-another-user", read, {"folder": look.request["storage_folder"], "user_id": own})


def _existing(look: Look) -> Path:
    path = look.root / look.request["storage_folder"].lstrip("/")
    while not path.exists():
        path = path.parent
    return path


def _unescaped(place: str) -> str:
    return place.replace("\\040", " ")
