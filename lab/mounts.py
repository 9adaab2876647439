"""Mount points of this machine."""

import re
from pathlib import Path

from lab.commands import run


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def mount_points(below: Path) -> list[Path]:
    """Returns the mount points at and below a folder, innermost first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [Path(_unescaped(line.split()[4])) for line in lines]
    return [point for point in reversed(points) if point.is_relative_to(below)]


def unmount_below(folder: Path) -> None:
    """Takes away every mount at and below a folder."""
    for point in mount_points(folder):
        run(["umount", "--lazy", str(point)], what=f"unmount {point}", way_out="See who uses it: fuser -m.")
