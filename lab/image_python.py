"""Running the Python of a rank image without a Docker engine: its one layer is unpacked and entered with chroot.

Packages for the image and the lab's model are made with the very Python that will use them. Containers would do too,
but they need an engine, which may not be there yet when these are made; a chroot needs what debootstrap needed anyway.
"""

import json
import shlex
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lab import places
from lab.commands import Report, dying_with_us, run
from lab.errors import LabError
from lab.locks import exclusive

_PATIENCE_SECONDS = 300
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class ImagePython:
    """The Python of an unpacked image.

    Attributes:
        root: the image's root folder.
    """

    root: Path

    def run(
        self,
        arguments: Sequence[str],
        *,
        what: str,
        readable: Mapping[str, Path] | None = None,
        writable: Mapping[str, Path] | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_seconds: float = 600,
    ) -> str:
        """Runs the image's python3 to its end; nothing of it outlives this process.

        Args:
            arguments: what python3 is given.
            what: what is being done, for the error.
            readable: folders of this machine that the program may read, by where it sees them.
            writable: folders of this machine that it may change, by where it sees them.
            environment: variables of the program beside PATH and HOME.
            timeout_seconds: how long it may take.

        Returns:
            What the program printed.

        Raises:
            LabError: the program failed or took too long.
        """
        steps = [
            ["mount", "--bind", "/dev", str(self.root / "dev")],
            ["mount", "-t", "proc", "proc", str(self.root / "proc")],
            ["mount", "-t", "tmpfs", "tmpfs", str(self.root / "tmp")],
        ]
        for target, source in (readable or {}).items():
            steps += self._bind(target, source, "ro")
        for target, source in (writable or {}).items():
            steps += self._bind(target, source, "rw")
        steps.append(["exec", "chroot", str(self.root), "python3", *arguments])
        script = " && ".join(shlex.join(step) for step in steps)
        variables = {"PATH": _PATH, "HOME": "/tmp", **(environment or {})}
        return run(
            dying_with_us(["sh", "-c", script]), what=what, environment=variables, timeout_seconds=timeout_seconds
        )

    def _bind(self, target: str, source: Path, mode: str) -> list[list[str]]:
        place = str(self.root / target.lstrip("/"))
        return [["mkdir", "-p", place], ["mount", "--options", f"bind,{mode}", str(source), place]]


def image_python(archive: Path, report: Report) -> ImagePython:
    """Unpacks a rank image, unless that was done before.

    Args:
        archive: the image as lab/images.py makes it, with one layer.
        report: receives progress lines.

    Raises:
        LabError: another process holds the folder for too long.
    """
    root = places.lab_cache_folder() / f"root-{archive.stem[:16]}"
    what = "unpack the image whose Python is needed"
    with exclusive(root.with_suffix(".lock"), what, _PATIENCE_SECONDS):
        if not root.exists():
            report(what)
            _unpack(archive, root)
    return ImagePython(root)


def _unpack(archive: Path, root: Path) -> None:
    building = root.with_suffix(".building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    with tarfile.open(archive) as outer:
        layers = json.load(_content(outer, "manifest.json", archive))[0]["Layers"]
        if len(layers) != 1:
            raise LabError(f"unpack {archive}", f"it has {len(layers)} layers, not one", "Remove it: it is made anew.")
        with tarfile.open(fileobj=_content(outer, layers[0], archive)) as layer:
            # The image is our own: owners, devices and absolute links stay as they are.
            layer.extraction_filter = lambda member, _path: member
            layer.extractall(building, numeric_owner=True)
    building.rename(root)


def _content(archive: tarfile.TarFile, member: str, path: Path) -> IO[bytes]:
    content = archive.extractfile(member)
    if content is None:
        raise LabError(f"unpack {path}", f"{member} is not a file", "Remove it: it is made anew.")
    return content
