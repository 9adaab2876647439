"""The weights of a node: what is there, what vouches for it, and the last steps after a transfer."""

import os
import stat
from pathlib import Path
from typing import Any

from runtime.common.checkpoint_files import absent_of
from runtime.common.errors import FilesError
from runtime.common.weights_folder import examine
from runtime.common.weights_manifest import Manifest
from runtime.node.errors import NodeTaskError
from runtime.node.files import locked, read_json, sync_folder, write_json
from runtime.node.progress import tell

_READABLE_BY_ALL = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
_ENTERED_BY_ALL = _READABLE_BY_ALL | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
_MOST_NAMED = 3
_FORMAT = 2
"""Of receipts; raised when they say other things."""


def status(request: dict[str, Any]) -> dict[str, Any]:
    """Says whether the weights of `revision` are complete here, by receipt and stat, without reading them.

    Args:
        request: `folder`, `receipt` (a file), `revision`, `requires`, `required_files` (see checkpoint_files).

    Returns:
        `complete`, the `manifest` hash and `size_bytes` that the receipt names, and `why` when incomplete.
    """
    folder = Path(request["folder"])
    receipt = _read_receipt(request)
    if receipt is None:
        return {"complete": False, "manifest": None, "size_bytes": None, "why": "there is no receipt"}
    found = {"manifest": receipt["hash"], "size_bytes": receipt["size_bytes"]}
    why = _why_incomplete(folder, receipt, request)
    return {"complete": why is None, **found, "why": why}


def held_manifest(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the manifest that the receipt vouches for, as plain data.

    Args:
        request: `receipt`.

    Raises:
        NodeTaskError: there is no receipt.
    """
    receipt = _read_receipt(request)
    if receipt is None:
        raise NodeTaskError(f"{request['receipt']} is not there any more: run it again")
    return receipt["manifest"]


def make_manifest(request: dict[str, Any]) -> dict[str, Any]:
    """Checks and hashes a folder of this node that weights shall come from.

    Args:
        request: `folder`, `storage_folder`, `read_all` (hashes that are remembered do not count), and what `examine`
            reads.

    Raises:
        NodeTaskError: it is no whole checkpoint.
    """
    try:
        folder = Path(request["folder"]).expanduser()
        memories = None if request["read_all"] else Path(request["storage_folder"]) / "hashes"
        return examine(request, folder, memories, tell).as_data()
    except FilesError as error:
        raise NodeTaskError(str(error)) from None


def finish(request: dict[str, Any]) -> dict[str, Any]:
    """Makes links, texts and modes after all files have arrived, and writes the receipt last.

    Whatever else lies in the folder stays, and is told.

    Args:
        request: `folder`, `receipt`, `manifest` (plain data), `in_place`: the folder is not ours (a share), and only
            the receipt is written.

    Raises:
        NodeTaskError: a file is not there as the manifest says, or something else is in a link's place.
    """
    folder, receipt = Path(request["folder"]), Path(request["receipt"])
    manifest = _manifest(request["manifest"])
    with locked(receipt.with_suffix(".lock")):
        _refuse_unlike(folder, manifest)
        if not request["in_place"]:
            _make_links(folder, manifest)
            _open_to_all(folder, manifest)
            _tell_foreign(folder, manifest)
        write_json(receipt, _receipt(folder, manifest))
    return {"manifest": manifest.hash, "size_bytes": manifest.size_bytes}


def distrust(request: dict[str, Any]) -> dict[str, Any]:
    """Notes in the receipt that files were found damaged although nobody changed them, so that they are brought again.

    Args:
        request: `receipt`, `paths`.
    """
    path = Path(request["receipt"])
    with locked(path.with_suffix(".lock")):
        receipt = _read_receipt(request)
        if receipt:
            write_json(path, {**receipt, "damaged": request["paths"]})
    return {"distrusted": bool(receipt)}


def _read_receipt(request: dict[str, Any]) -> dict[str, Any] | None:
    """A receipt that another version of this program wrote vouches for nothing: the files are looked at again."""
    receipt = read_json(Path(request["receipt"]))
    return receipt if receipt and receipt.get("format") == _FORMAT else None


def _why_incomplete(folder: Path, receipt: dict[str, Any], request: dict[str, Any]) -> str | None:
    if receipt["manifest"]["revision"] != request["revision"]:
        return f"the receipt is for revision {receipt['manifest']['revision']}"
    if receipt["damaged"]:
        return f"{folder / receipt['damaged'][0]} was found damaged when it was read again"
    for path, size_bytes, modified_ns in receipt["states"]:
        if why := _difference(folder / path, size_bytes, modified_ns):
            return why
    for link, target in receipt["manifest"]["links"].items():
        if not _leads_to(folder / link, target):
            return f"{folder / link} is not the link to {target} that the receipt names"
    for path, text in receipt["texts"].items():
        if not _holds(folder / path, text):
            return f"{folder / path} does not hold {text} alone, as the client of Hugging Face needs it"
    manifest = Manifest.from_data(receipt["manifest"])
    absent = absent_of(folder / manifest.root, set(manifest.content()), request["requires"], request["required_files"])
    return absent[0] if absent else None


def _difference(path: Path, size_bytes: int, modified_ns: int) -> str | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return f"{path} is not there"
    if found.st_size != size_bytes:
        return f"{path} has {found.st_size} bytes, the receipt says {size_bytes}"
    if found.st_mtime_ns != modified_ns:
        return f"{path} was changed after the receipt was written"
    return None


def _leads_to(link: Path, target: str) -> bool:
    return link.is_symlink() and os.path.realpath(link) == os.path.realpath(link.parent / target)


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


def _manifest(data: dict[str, Any]) -> Manifest:
    try:
        return Manifest.from_data(data)
    except FilesError as error:
        raise NodeTaskError(str(error)) from None


def _receipt(folder: Path, manifest: Manifest) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "hash": manifest.hash,
        "size_bytes": manifest.size_bytes,
        "manifest": manifest.as_data(),
        "states": [[file.path, file.size_bytes, (folder / file.path).stat().st_mtime_ns] for file in manifest.files],
        "texts": {path: text for path, text in manifest.texts.items() if _holds(folder / path, text)},
        "damaged": [],
    }


def _refuse_unlike(folder: Path, manifest: Manifest) -> None:
    for file in manifest.files:
        path = folder / file.path
        if not path.is_file() or path.stat().st_size != file.size_bytes:
            raise NodeTaskError(f"{path} is not there with {file.size_bytes} bytes after the transfer: run it again")


def _make_links(folder: Path, manifest: Manifest) -> None:
    for link, target in manifest.links.items():
        _refuse_in_the_way(folder / link)
        _put(folder / link, lambda temporary, target=target: temporary.symlink_to(target))
    for path, text in manifest.texts.items():
        _put(folder / path, lambda temporary, text=text: temporary.write_text(text))
    for parent in {(folder / path).parent for path in (*manifest.links, *manifest.texts)}:
        sync_folder(parent)


def _refuse_in_the_way(path: Path) -> None:
    if path.exists() and not path.is_symlink():
        raise NodeTaskError(
            f"{path} is a file, and the weights have a link of that name; it is not ours, so it stays: move it away"
        )


def _put(path: Path, make: Any) -> None:
    """Puts a link or a small file in place in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")  # the same after a kill, so that none is left behind
    temporary.unlink(missing_ok=True)
    make(temporary)
    temporary.replace(path)


def _open_to_all(folder: Path, manifest: Manifest) -> None:
    """Lets the user of the container read the files, whoever that is; nothing is taken away."""
    paths = (*(file.path for file in manifest.files), *manifest.texts)
    parents = {folder / parent for path in (*paths, *manifest.links) for parent in Path(path).parents}
    for path, wanted in (
        *((parent, _ENTERED_BY_ALL) for parent in sorted(parents)),
        *((folder / path, _READABLE_BY_ALL) for path in paths),
    ):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & wanted != wanted:
            path.chmod(mode | wanted)


def _tell_foreign(folder: Path, manifest: Manifest) -> None:
    ours = {file.path for file in manifest.files} | manifest.links.keys() | manifest.texts.keys()
    foreign = sorted(
        name
        for path in folder.rglob("*")
        if (path.is_symlink() or path.is_file()) and (name := path.relative_to(folder).as_posix()) not in ours
    )
    if foreign:
        named = ", ".join(foreign[:_MOST_NAMED])
        tell(f"{len(foreign)} files in {folder} are not of these weights and stay: {named}")
