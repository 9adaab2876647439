"""Fetches the real sources that patches are tested against: pinned wheels, of which only the needed files are kept.

patches/sources.yaml pins them. pip downloads each wheel whole (1 GB in all, seconds on a fast line) and checks its
hash; what is kept of them lies in the cache, 50 MB.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ops.places import PROJECT, cache_folder

PATCHES = PROJECT / "patches"
_LOCK = PATCHES / "sources.yaml"
_PATIENCE_SECONDS = 900
_DOWNLOAD = ("-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check", "--no-cache-dir")
_EXACTLY_THIS = ("--no-deps", "--require-hashes", "--only-binary=:all:")
_PLATFORMS = ("--platform=manylinux_2_28_x86_64", "--platform=manylinux_2_34_x86_64")
_FOR = (*_PLATFORMS, "--implementation=cp", "--abi=abi3", "--abi=none")


class SourceError(Exception):
    """Raised when a wheel could not be fetched; its text is pip's, with the way out."""


@dataclass(frozen=True)
class StandIn:
    """A release whose files are tested in place of a base.

    Attributes:
        vllm, flashinfer, sglang: the releases; of one without a release the chain has no edit.
        folders: that have another name in the release, by their name in the base.
    """

    vllm: str | None = None
    flashinfer: str | None = None
    sglang: str | None = None
    folders: dict[str, str] = field(default_factory=dict)

    def release(self, tree: str) -> str | None:
        """Returns the release of `vllm`, `flashinfer` or `sglang`."""
        return {"vllm": self.vllm, "flashinfer": self.flashinfer, "sglang": self.sglang}[tree]


@dataclass(frozen=True)
class Wheel:
    """One pinned wheel.

    Attributes:
        tree: such as `vllm`: the folder of the packages folder that it fills.
        release: its version.
        requirement: what pip is asked for.
        sha256: of the wheel.
        python: that it is for.
    """

    tree: str
    release: str
    requirement: str
    sha256: str
    python: str = "3.12"


@cache
def _lock() -> dict[str, Any]:
    return yaml.safe_load(_LOCK.read_text(encoding="utf-8"))


def releases(tree: str) -> list[str]:
    """Returns the pinned releases of `vllm`, `flashinfer` or `sglang`, oldest first."""
    return list(_lock()["wheels"][tree])


def stand_in(versions: dict[str, str]) -> StandIn:
    """Returns what a base with these versions is tested against: its own releases, or those that stand in for it."""
    engine = next(versions[name] for name in ("vllm", "sglang") if name in versions)
    written = _lock()["stand_ins"].get(engine)
    return StandIn(**written) if written else StandIn(versions["vllm"], versions["flashinfer-python"])


def path_in_releases(file: str) -> str:
    """Returns where the releases have a file that a step names as its base has it."""
    for written in _lock()["stand_ins"].values():
        for ours, theirs in written.get("folders", {}).items():
            if file.startswith(f"{ours}/"):
                return theirs + file[len(ours) :]
    return file


def ensure_sources() -> dict[tuple[str, str], Path]:
    """Fetches what is not in the cache yet.

    Returns:
        A folder for each tree and release, with files as a packages folder has them.

    Raises:
        SourceError: a wheel could not be fetched.
    """
    wheels = [
        Wheel(tree, release, **pinned) for tree, pins in _lock()["wheels"].items() for release, pinned in pins.items()
    ]
    with ThreadPoolExecutor(len(wheels)) as pool:
        folders = pool.map(_ensure_source, wheels)
    return {(wheel.tree, wheel.release): folder for wheel, folder in zip(wheels, folders, strict=True)}


def ensure_tool(name: str) -> Path:
    """Fetches what tests run patches with, apart from the sources: it is large and few need it.

    Returns:
        A folder for PYTHONPATH.

    Raises:
        SourceError: the wheel could not be fetched.
    """
    pinned = dict(_lock()["tools"][name])
    kept = pinned.pop("keep")
    return _ensure(Wheel(name, pinned.pop("release"), **pinned), kept)


def _ensure_source(wheel: Wheel) -> Path:
    return _ensure(wheel, [*_named_by_steps(wheel.tree), *_lock()["also"][wheel.tree].get(wheel.release, ())])


def _ensure(wheel: Wheel, patterns: Iterable[str]) -> Path:
    wanted = sorted(set(patterns))
    identity = hashlib.sha256("\n".join([wheel.sha256, *wanted]).encode()).hexdigest()[:16]
    folder = cache_folder() / "sources" / f"{wheel.tree}-{wheel.release}-{identity}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetching-") as temporary:
            tree = Path(temporary) / "tree"
            _unpack(_download(wheel, Path(temporary)), wanted, tree)
            _put(tree, folder)
    return folder


def _named_by_steps(tree: str) -> Iterable[str]:
    for step in PATCHES.glob("**/step.yaml"):
        written = yaml.safe_load(step.read_text(encoding="utf-8"))
        for entry in (*written.get("edits", ()), *written.get("asserts", ())):
            if entry["file"].startswith(f"{tree}/"):
                yield path_in_releases(entry["file"])


def _download(wheel: Wheel, folder: Path) -> Path:
    pinned = folder / "requirements.txt"
    pinned.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n", encoding="utf-8")
    python = (f"--python-version={wheel.python}", f"--abi=cp{wheel.python.replace('.', '')}")
    target = ("--dest", str(folder), "--requirement", str(pinned))
    command = [sys.executable, *_DOWNLOAD, *_EXACTLY_THIS, *_FOR, *python, *target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False)
    if done.returncode:
        raise SourceError(
            f"{wheel.requirement} could not be fetched:\n{done.stderr.strip()}\n"
            "Way out: see whether this machine reaches its package index, then try again."
        )
    return next(folder.glob("*.whl"))


def _unpack(wheel: Path, wanted: Iterable[str], folder: Path) -> None:
    folder.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        members = archive.namelist()
        for pattern in wanted:
            archive.extractall(folder, [name for name in members if fnmatch(name, pattern)])


def _put(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        # Another process was faster.
        if not folder.is_dir():
            raise
        shutil.rmtree(made)
