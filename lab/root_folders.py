"""Root folders of Debian systems, made by debootstrap and apt in folders of their own."""

import os
import re
import shutil
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab import places
from lab.archives import fixed_time
from lab.commands import Report, dying_with_us, run
from lab.errors import LabError
from lab.locks import exclusive
from lab.packages import ensure

_BUILD_PATIENCE_SECONDS = 900
_BASE_VERSION = 2
_NETWORK_WAY_OUT = "See whether this machine reaches a Debian mirror; GB10_SERVING_DEBIAN_MIRROR names another one."
_APT_SETTINGS = """
quiet "1";
APT::Get::Assume-Yes "true";
APT::Install-Recommends "false";
Dpkg::Options { "--force-unsafe-io"; };
"""
_INSTALL = 'umask 022 && mount -t proc proc /proc && apt-get update && exec apt-get install "$@"'
_SETTINGS_FILE = "etc/apt/apt.conf.d/gb10-serving-lab"
# What a running system makes again, what only the building machine knows, and what nobody reads in a container.
_SUPERFLUOUS = (
    "etc/hostname",
    "etc/machine-id",
    "etc/resolv.conf",
    "etc/passwd-",
    "etc/group-",
    "etc/shadow-",
    "etc/gshadow-",
    "etc/ssh/ssh_host_*",
    _SETTINGS_FILE,
    "usr/share/doc/*",
    "usr/share/info/*",
    "usr/share/lintian/*",
    "usr/share/locale/*",
    "usr/share/man/*",
    "usr/sbin/policy-rc.d",
    "var/cache/apt/*",
    "var/cache/debconf/*-old",
    "var/cache/ldconfig/aux-cache",
    "var/lib/apt/lists/*",
    "var/lib/dpkg/*-old",
    "var/log/*",
)


@dataclass(frozen=True)
class RootFolder:
    """A system's root folder under construction.

    Attributes:
        path: the folder.
        made_after: when its making began; what is newer came from installing, not from a package.
    """

    path: Path
    made_after: float


@contextmanager
def building_folder() -> Iterator[Path]:
    """Gives a folder for one construction at a time; what a killed one left behind is removed."""
    building = places.lab_cache_folder() / "building"
    with exclusive(places.lab_cache_folder() / "building.lock", "make an image", _BUILD_PATIENCE_SECONDS):
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        try:
            yield building
        finally:
            shutil.rmtree(building)


def make_root(suite: str, packages: Sequence[str], folder: Path, report: Report) -> RootFolder:
    """Makes a system of a Debian suite with packages in it, without caches, documentation and traces of this machine.

    Args:
        suite: Debian release.
        packages: what is installed beside the minimal system.
        folder: where the work happens, as `building_folder` gives it.
        report: receives progress lines.

    Returns:
        The root folder, inside `folder`.

    Raises:
        LabError: debootstrap or apt failed.
    """
    base = _minimal_system(suite, folder, report)
    root = RootFolder(folder / "root", time.time())
    root.path.mkdir()
    unpack = ["tar", "--extract", "--numeric-owner", "--file", str(base), "--directory", str(root.path)]
    run(unpack, what=f"unpack {base}", way_out=f"Remove {base}: it is made anew.")
    report(f"install {len(packages)} packages and what they need")
    _install_in(root.path, packages)
    _strip(root.path)
    return root


def _require_root() -> None:
    if os.geteuid() != 0:
        raise LabError("make an image", "debootstrap needs root", "Run this command as root.")


def _minimal_system(suite: str, folder: Path, report: Report) -> Path:
    """Returns the archive of a suite's minimal system, made once and kept."""
    _require_root()
    archive = places.lab_cache_folder() / f"minimal-{suite}-{os.uname().machine}-{_BASE_VERSION}.tar"
    if not archive.exists():
        report(f"make a minimal {suite} system (once, about half a minute)")
        root = RootFolder(folder / "minimal", time.time())
        _debootstrap(suite, root.path, report)
        _keep(root, archive)
    return archive


def _debootstrap(suite: str, root: Path, report: Report) -> None:
    ensure(["debootstrap"], ["debootstrap", "debian-archive-keyring"], "to make images", report)
    mirror = os.environ.get("GB10_SERVING_DEBIAN_MIRROR")
    arguments = ["--variant=minbase", suite, str(root), *([mirror] if mirror else [])]
    run(dying_with_us(["debootstrap", *arguments]), what=f"make a minimal {suite} system", way_out=_NETWORK_WAY_OUT)


def _keep(root: RootFolder, archive: Path) -> None:
    def with_fixed_time(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime = fixed_time(member.mtime, root.made_after)
        return member

    _remove(root.path, ("var/lib/apt/lists/*", "var/cache/apt/*"))
    unfinished = root.path.parent / archive.name
    with tarfile.open(unfinished, "w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(root.path, arcname=".", filter=with_fixed_time)
    unfinished.rename(archive)


def _install_in(root: Path, packages: Sequence[str]) -> None:
    shutil.copyfile("/etc/resolv.conf", root / "etc/resolv.conf")
    services_stay_off = root / "usr/sbin/policy-rc.d"
    services_stay_off.write_text("#!/bin/sh\nexit 101\n")
    services_stay_off.chmod(0o755)
    (root / _SETTINGS_FILE).write_text(_APT_SETTINGS)
    environment = {
        **{name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")},
        "DEBIAN_FRONTEND": "noninteractive",
        "LC_ALL": "C",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }
    inside = ["chroot", str(root), "sh", "-c", _INSTALL, "install", *packages]
    run(dying_with_us(inside), what=f"install {' '.join(packages)}", way_out=_NETWORK_WAY_OUT, environment=environment)


def _remove(root: Path, patterns: Sequence[str]) -> None:
    for pattern in patterns:
        for path in root.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _strip(root: Path) -> None:
    _remove(root, _SUPERFLUOUS)
    shadow = root / "etc/shadow"
    # The day on which each password was last changed is that of the installation; empty says that passwords do not age.
    shadow.write_text(re.sub(r"^([^:]*:[^:]*):\d+:", r"\1::", shadow.read_text(), flags=re.MULTILINE))
