"""Receives a folder of weights and vouches for it with a receipt."""

import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO

from runtime.common.weights_manifest import CHUNK_BYTES, manifest_hash, manifest_of
from runtime.node.errors import NodeTaskError
from runtime.node.files import locked, read_json, sync_folder, write_json
from runtime.node.progress import tell


def status(request: dict[str, Any]) -> dict[str, Any]:
    """Says whether the weights of `revision` are complete here, by receipt and stat, without reading them.

    Args:
        request: `folder`, `revision`.

    Returns:
        `complete`, the `manifest` hash that the receipt names, and `why` when incomplete.
    """
    folder = Path(request["folder"])
    receipt = read_json(_receipt_path(folder))
    if receipt is None:
        return {"complete": False, "manifest": None, "why": "there is no receipt"}
    if receipt["revision"] != request["revision"]:
        return {"complete": False, "manifest": None, "why": f"the receipt is for revision {receipt['revision']}"}
    for entry in receipt["files"]:
        why = _difference(folder / entry["path"], entry)
        if why:
            return {"complete": False, "manifest": receipt["manifest"], "why": why}
    return {"complete": True, "manifest": receipt["manifest"], "why": None}


def receive(request: dict[str, Any], payload: BinaryIO) -> dict[str, Any]:
    """Unpacks a tar stream into a temporary folder, checks every hash and only then puts it in place.

    A second transfer of the same model waits for the first and then finds nothing to do.

    Args:
        request: `folder`, `revision`, `manifest` (path, size and sha256 of each file).
        payload: the tar stream.

    Raises:
        NodeTaskError: too little disk, an entry outside the folder, or content that differs from the manifest.
    """
    folder = Path(request["folder"])
    with locked(folder.with_name(f".{folder.name}.lock")):
        if status(request) == _complete(request["manifest"]):
            return _complete(request["manifest"])
        return _receive(folder, request, payload)


def _receive(folder: Path, request: dict[str, Any], payload: BinaryIO) -> dict[str, Any]:
    manifest = request["manifest"]
    incoming = folder.with_name(f".{folder.name}.incoming")
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.mkdir(parents=True)
    try:
        _check_disk(incoming, sum(entry["size"] for entry in manifest))
        _unpack(payload, incoming)
        _check_content(incoming, manifest)
        shutil.rmtree(folder, ignore_errors=True)
        incoming.rename(folder)
    except BaseException:
        shutil.rmtree(incoming, ignore_errors=True)
        raise
    sync_folder(folder.parent)
    write_json(_receipt_path(folder), _receipt(request["revision"], folder, manifest))
    return _complete(manifest)


def _complete(manifest: list[dict[str, Any]]) -> dict[str, Any]:
    return {"complete": True, "manifest": manifest_hash(manifest), "why": None}


def _receipt_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.receipt.json")


def _receipt(revision: str, folder: Path, manifest: list[dict[str, Any]]) -> dict[str, Any]:
    files = [{**entry, "modified_ns": (folder / entry["path"]).stat().st_mtime_ns} for entry in manifest]
    return {"revision": revision, "manifest": manifest_hash(manifest), "files": files}


def _difference(path: Path, entry: dict[str, Any]) -> str | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return f"{path} is not there"
    if found.st_size != entry["size"]:
        return f"{path} has {found.st_size} bytes, the receipt says {entry['size']}"
    if found.st_mtime_ns != entry["modified_ns"]:
        return f"{path} was changed after the receipt was written"
    return None


def _check_disk(folder: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise NodeTaskError(
            f"{folder.parent} has {free} bytes free and the weights need {needed_bytes}: "
            f"free {needed_bytes - free} bytes there"
        )


def _unpack(payload: BinaryIO, folder: Path) -> None:
    with tarfile.open(fileobj=payload, mode="r|") as archive:
        for member in archive:
            source = archive.extractfile(member)
            name = PurePosixPath(member.name)
            if source is None or name.is_absolute() or ".." in name.parts:
                raise NodeTaskError(
                    f"the stream holds {member.name!r}, which is no plain file inside the folder; nothing was kept"
                )
            _write(source, folder / name)
            tell(f"received {name} ({member.size} bytes)")


def _write(source: IO[bytes], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(source, file, CHUNK_BYTES)
        file.flush()
        os.fsync(file.fileno())


def _check_content(folder: Path, manifest: list[dict[str, Any]]) -> None:
    expected = {entry["path"]: entry for entry in manifest}
    found = {str(entry["path"]): entry for entry in manifest_of(folder)}
    for path in sorted(expected.keys() | found.keys()):
        if expected.get(path) != found.get(path):
            raise NodeTaskError(
                f"{path} did not arrive as it was sent: expected {expected.get(path)}, got {found.get(path)}; "
                "nothing was kept, run `pulumi up` again"
            )
