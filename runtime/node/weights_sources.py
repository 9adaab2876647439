"""Where a node gets weights from when no other node sends them: itself, Hugging Face, or a share."""

import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import IO, Any

from runtime.common.errors import FilesError
from runtime.common.weights_manifest import Manifest
from runtime.node.errors import NodeTaskError
from runtime.node.files import locked, sync_folder
from runtime.node.progress import tell

_NFS_TYPES = ("nfs", "nfs4")
_LAST_LINES = 8
_TELL_SECONDS = 10
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_CLIENT_ENVIRONMENT = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
_PROGRAM = """
import sys
from huggingface_hub import snapshot_download
repository, revision, cache, endpoint = sys.argv[1:]
snapshot_download(repository, revision=revision, cache_dir=cache, endpoint=endpoint or None)
"""
"""What the client's Python runs: its module is an interface that holds, its command line has changed its name twice."""


def adopt(request: dict[str, Any]) -> dict[str, Any]:
    """Puts files of another folder of this node into ours: by hard link, or as a copy where that cannot be.

    The other folder stays as it is. A file that only its owner may read is copied, so that its mode need not change.

    Args:
        request: `source_folder`, `folder`, `manifest` (plain data).

    Returns:
        `linked` and `copied`: bytes.

    Raises:
        NodeTaskError: too little disk, or the manifest leaves the folder.
    """
    source, folder = Path(request["source_folder"]).expanduser(), Path(request["folder"])
    try:
        manifest = Manifest.from_data(request["manifest"])
    except FilesError as error:
        raise NodeTaskError(str(error)) from None
    moved = {"linked": 0, "copied": 0}
    with locked(folder.with_name(f".{folder.name}.lock")):
        for file in manifest.files:
            target = folder / file.path
            if not _is_same(source / file.path, target):
                moved[_bring(source / file.path, target)] += file.size_bytes
        for parent in {(folder / file.path).parent for file in manifest.files}:
            sync_folder(parent)
    return moved


def download(request: dict[str, Any]) -> dict[str, Any]:
    """Downloads one revision of a repository with the client of Hugging Face; goes on where an earlier one broke off.

    The client is the module huggingface_hub of `python`. It finds its token by itself (`hf auth login` on this node).

    Args:
        request: `repository`, `revision`, `cache_folder`, `python` (a program on this node), `endpoint` (of a mirror,
            or none).

    Returns:
        `folder`: the repository's folder in the cache.

    Raises:
        NodeTaskError: there is no client, or it failed; its last words are told.
    """
    cache = Path(request["cache_folder"])
    folder = cache / f"models--{request['repository'].replace('/', '--')}"
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / f".{folder.name}.lock"):
        _require_client(request["python"])
        _run_client(request, folder)
    return {"folder": str(folder)}


def share(request: dict[str, Any]) -> dict[str, Any]:
    """Makes sure that a folder lies on the share that the stack file names.

    A server that was left from something else, with another root, has been mistaken for the right one, and a mount
    that lost a race at boot is an empty folder (facts/seed-repos.md section 6, 38).

    Args:
        request: `folder`, `export` (`SERVER:/PATH`, as /proc/mounts shows it).

    Raises:
        NodeTaskError: it is on the node's own disk, or on another share.
    """
    folder = Path(request["folder"])
    device, kind, point = mount_of(folder, Path("/proc/mounts").read_text())
    if kind not in _NFS_TYPES:
        raise NodeTaskError(
            f"{folder} lies on {device} ({kind}, mounted at {point}), which is no NFS share: mount "
            f"{request['export']} there, and let the mount come before Docker at boot"
        )
    if device != request["export"]:
        raise NodeTaskError(
            f"{folder} lies on the share {device}, the stack file names {request['export']}: correct one of them"
        )
    return {"mounted": device}


def mount_of(folder: Path, mounts: str) -> tuple[str, str, str]:
    """Returns device, type and mount point of the file system that holds a folder, from the text of /proc/mounts."""
    found = ("none", "none", "/")
    for line in mounts.splitlines():
        device, point, kind = (_unescaped(word) for word in line.split()[:3])
        if (folder == Path(point) or Path(point) in folder.parents) and len(point) >= len(found[2]):
            found = (device, kind, point)
    return found


def _unescaped(word: str) -> str:
    return word.encode().decode("unicode_escape").encode("latin-1").decode()


def _is_same(source: Path, target: Path) -> bool:
    try:
        found, wanted = target.stat(), source.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(found, wanted)


def _bring(source: Path, target: Path) -> str:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.new")  # the same after a kill, so that none is left behind
    temporary.unlink(missing_ok=True)
    try:
        how = "linked" if _link(source, temporary) else _copy(source, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return how


def _link(source: Path, temporary: Path) -> bool:
    if not source.stat().st_mode & 0o004:
        return False
    try:
        os.link(source.resolve(), temporary)
    except OSError:  # another file system, or one that knows no links
        return False
    return True


def _copy(source: Path, temporary: Path) -> str:
    size, free = source.stat().st_size, shutil.disk_usage(temporary.parent).free
    if free < size:
        raise NodeTaskError(
            f"{temporary.parent} has {free} bytes free and {source.name} needs {size}: free {size - free} bytes there"
        )
    tell(f"copying {source.name}, {size >> 20} MiB")
    shutil.copyfile(source, temporary)
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    return "copied"


def _require_client(python: str) -> None:
    try:
        found = (
            subprocess.run([python, "-c", "import huggingface_hub"], capture_output=True, check=False).returncode == 0
        )
    except FileNotFoundError:
        raise NodeTaskError(f"{python}, which the stack file names for the download, is not on this node") from None
    if not found:
        raise NodeTaskError(
            f"{python} of this node has no client of Hugging Face: `python3 -m venv /opt/hf && /opt/hf/bin/pip install "
            "huggingface_hub` there, and give this source `python: /opt/hf/bin/python` in the stack file"
        )


def _run_client(request: dict[str, Any], folder: Path) -> None:
    tell(f"downloading {request['repository']} at {request['revision']}")
    process = subprocess.Popen(
        [
            *(request["python"], "-c", _PROGRAM),
            *(request["repository"], request["revision"], str(folder.parent), request["endpoint"] or ""),
        ],
        env={key: value for key, value in os.environ.items() if key not in _OFFLINE} | _CLIENT_ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    lines: list[str] = []
    reader = threading.Thread(target=_keep_last, args=(process.stdout, lines), daemon=True)
    reader.start()
    _watch(process, folder)
    reader.join()
    if process.returncode:
        last = lines[-1] if lines else "it gave no reason"
        raise NodeTaskError(
            f"the download of {request['repository']} at {request['revision']} failed: {last}. "
            "What arrived is kept, and the next run goes on from there. For a repository that asks who you are: "
            "`hf auth login` on this node"
        )


def _watch(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    while not _has_ended(process):
        here = sum(path.stat().st_blocks * 512 for path in (folder / "blobs").glob("*"))
        tell(f"downloaded {here >> 20} MiB so far")


def _has_ended(process: "subprocess.Popen[bytes]") -> bool:
    try:
        process.wait(timeout=_TELL_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _keep_last(stream: IO[bytes] | None, lines: list[str]) -> None:
    for raw in stream or ():
        if text := raw.decode(errors="replace").strip():
            lines.append(text[:500])
            del lines[:-_LAST_LINES]
