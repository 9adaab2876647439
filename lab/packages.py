"""Debian packages that lab/ needs on this machine."""

import os
import shutil
from collections.abc import Sequence

from lab.commands import Report, run, succeeds
from lab.errors import LabError

_APT = (
    "apt-get",
    "-o",
    "Acquire::http::Timeout=20",
    "-o",
    "Acquire::https::Timeout=20",
    "-o",
    "Acquire::Retries=1",
    "-o",
    "DPkg::Lock::Timeout=300",
)


def missing(programs: Sequence[str]) -> list[str]:
    """Returns those of the programs that are not on PATH."""
    return [program for program in programs if shutil.which(program) is None]


def _require_apt(what: str, packages: Sequence[str]) -> None:
    names = " ".join(packages)
    if shutil.which("apt-get") is None:
        raise LabError(what, "this is neither Debian nor Ubuntu", f"Install what Debian calls {names} and try again.")
    if os.geteuid() != 0:
        raise LabError(what, "installing packages needs root", f"Run as root: apt-get install {names}")


def install(packages: Sequence[str], why: str, report: Report) -> None:
    """Installs Debian packages.

    Args:
        packages: names of packages.
        why: what they are needed for, for progress and errors.
        report: receives a progress line.

    Raises:
        LabError: not Debian or Ubuntu, not root, or apt-get failed.
    """
    what = f"install {' '.join(packages)} ({why})"
    _require_apt(what, packages)
    report(what)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # A foreign source that does not answer must not stop us; what is really missing, the installation tells.
    succeeds([*_APT, "update", "--quiet"], timeout_seconds=300)
    run(
        [*_APT, "install", "--yes", "--quiet", "--no-install-recommends", *packages],
        what=what,
        way_out="See whether `apt-get update` and `apt-get install` work on this machine.",
        environment=environment,
    )


def ensure(programs: Sequence[str], packages: Sequence[str], why: str, report: Report) -> None:
    """Installs packages unless the programs that they bring are there."""
    if missing(programs):
        install(packages, why, report)
    if absent := missing(programs):
        raise LabError(f"install {' '.join(packages)}", f"no {absent[0]} came with it", "Install it by hand.")
