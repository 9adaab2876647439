"""Reads what `docker save` writes, as a stream and in every form that Docker has: old, OCI, and the containerd store's.

- Docker before 25: `<id>/layer.tar` a layer, `<hash>.json` the config, `manifest.json`; a layer that an image has twice
  is a link the second time.
- Docker from 25: an OCI layout (`index.json`, `blobs/sha256/<hash>`), layers uncompressed, beside `manifest.json`.
- With the containerd store the same layout, where layers may be compressed and blobs may be absent.
"""

import gzip
import json
import posixpath
import shutil
import subprocess
import tarfile
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

from runtime.common.file_hashes import CHUNK_BYTES
from runtime.node.errors import NodeTaskError
from runtime.node.files import read_json, write_json
from runtime.node.image.store import ImageStore, name_of
from runtime.node.progress import tell

_MOST_DOCUMENT_BYTES = 4 << 20
_TOLD_EVERY_BYTES = 4 << 30
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class SavedLayer:
    """One layer in a saved image.

    Attributes:
        diff_id: SHA-256 of the uncompressed layer, `sha256:...`.
        member: name of its file in the archive.
        size_bytes: of that file, which may be compressed; none where the archive lacks it.
        digest: of that file; none in the old form.
        media_type: of that file; none in the old form.
    """

    diff_id: str
    member: str
    size_bytes: int | None
    digest: str | None = None
    media_type: str | None = None


@dataclass(frozen=True)
class SavedImage:
    """What a saved image holds.

    Attributes:
        config: the image's configuration, byte for byte.
        layers: lowest first.
    """

    config: str
    layers: tuple[SavedLayer, ...]


@contextmanager
def saving(identifier: str, to_the_end: bool) -> Iterator[tarfile.TarFile]:
    """Runs `docker save` and gives its archive as a stream.

    Args:
        identifier: the image.
        to_the_end: whether the archive is read to its end; otherwise Docker is stopped when the reader has enough.

    Raises:
        NodeTaskError: Docker could not save the image, or broke off.
    """
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(["docker", "save", identifier], stdout=subprocess.PIPE, stderr=words)
        stream = cast(IO[bytes], process.stdout)
        try:
            with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK_BYTES) as archive:
                yield archive
            if to_the_end and _drained(stream) and process.wait() != 0:
                raise _save_failed(identifier, words, f"it ended with {process.returncode}")
        except tarfile.TarError as error:
            process.wait()
            raise _save_failed(identifier, words, str(error)) from None
        finally:
            process.kill()
            stream.close()
            process.wait()


def _drained(stream: IO[bytes]) -> bool:
    """Reads the padding behind an archive, so that its writer can end."""
    while stream.read(CHUNK_BYTES):
        pass
    return True


def _save_failed(identifier: str, words: IO[bytes], otherwise: str) -> NodeTaskError:
    words.seek(0)
    said = words.read().decode(errors="replace").strip() or otherwise
    return NodeTaskError(f"`docker save {identifier}` failed on this node: {said}")


def saved_image(image: dict[str, Any], store: ImageStore, storage_folder: Path) -> SavedImage:
    """Returns what `docker save` of an inspected image would hold; reads it through once and keeps the answer.

    Raises:
        NodeTaskError: Docker could not save it, or wrote something else.
    """
    identifier = image["Id"]
    path = storage_folder / "images" / "saved" / f"{identifier.removeprefix('sha256:')}-{store.version}.json"
    kept = read_json(path)
    if kept is None:
        tell(f"reading through {name_of(image)} once")
        with saving(identifier, to_the_end=True) as archive:
            found = read_index(archive, image["RootFS"]["Layers"])
        write_json(path, asdict(found))
        return found
    return SavedImage(kept["config"], tuple(SavedLayer(**layer) for layer in kept["layers"]))


def forget_absent(storage_folder: Path, identifiers: set[str]) -> None:
    """Removes what `saved_image` kept of images that the node no longer has."""
    for path in (storage_folder / "images" / "saved").glob("*.json"):
        if f"sha256:{path.name[:64]}" not in identifiers:
            path.unlink(missing_ok=True)


def read_index(archive: tarfile.TarFile, layers: list[str]) -> SavedImage:
    """Reads a saved image through and says where each layer is; keeps only small JSON files in memory.

    Args:
        archive: as a stream.
        layers: the diff ids of the wanted image, lowest first, since an archive can hold several.

    Raises:
        NodeTaskError: the archive holds no such image.
    """
    sizes: dict[str, int] = {}
    links: dict[str, str] = {}
    documents: dict[str, bytes] = {}
    for member in told(archive):
        if member.issym():
            links[member.name] = posixpath.normpath(posixpath.join(posixpath.dirname(member.name), member.linkname))
        elif member.islnk():
            links[member.name] = posixpath.normpath(member.linkname)
        elif member.isfile():
            sizes[member.name] = member.size
            content = _document(archive, member)
            if content is not None:
                documents[member.name] = content
    found = _from_layout(documents, sizes, layers) or _from_manifest(documents, sizes, links, layers)
    if found is None:
        raise NodeTaskError(
            f"`docker save` wrote an archive without an image of the {len(layers)} layers that `docker image inspect` "
            "names: the image changed meanwhile, or this Docker writes a form that we do not know; run it again"
        )
    return found


def told(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Goes through the members and tells the operator now and then how far it is."""
    next_bytes = _TOLD_EVERY_BYTES
    for member in archive:
        if member.offset >= next_bytes:
            tell(f"{member.offset >> 30} GiB of the image read")
            next_bytes = member.offset + _TOLD_EVERY_BYTES
        yield member


@contextmanager
def plain(source: IO[bytes]) -> Iterator[IO[bytes]]:
    """Gives the uncompressed content of a layer's file, whatever it is compressed with.

    Raises:
        NodeTaskError: the compressed layer is damaged, or the node has no zstd program for it.
    """
    start = cast(Any, source).peek(4)[:4]
    if start[:2] == _GZIP:
        try:
            with gzip.GzipFile(fileobj=source) as content:
                yield cast(IO[bytes], content)
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise NodeTaskError(f"a layer is compressed with gzip and damaged: {error}") from None
    elif start == _ZSTD:
        with _zstd(source) as content:
            yield content
    else:
        yield source


@contextmanager
def _zstd(source: IO[bytes]) -> Iterator[IO[bytes]]:
    if shutil.which("zstd") is None:
        raise NodeTaskError("a layer is compressed with zstd and this node has no zstd program; install it")
    process = subprocess.Popen(["zstd", "-dcq"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    feeder = threading.Thread(target=_feed, args=(source, process.stdin), daemon=True)
    feeder.start()
    try:
        yield cast(IO[bytes], process.stdout)
        if process.wait() != 0:
            raise NodeTaskError(f"zstd ended with {process.returncode} while it unpacked a layer: the layer is damaged")
    finally:
        process.kill()
        process.wait()
        feeder.join()


def _feed(source: IO[bytes], target: IO[bytes]) -> None:
    try:
        with target:
            shutil.copyfileobj(source, target, CHUNK_BYTES)
    except BrokenPipeError:
        # The program's exit code says what was wrong.
        return


def _document(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | None:
    if member.size > _MOST_DOCUMENT_BYTES:
        return None
    content = cast(IO[bytes], archive.extractfile(member)).read()
    return content if content[:1] in (b"{", b"[") else None


def _from_layout(documents: dict[str, bytes], sizes: dict[str, int], layers: list[str]) -> SavedImage | None:
    if "index.json" not in documents:
        return None
    for manifest in _manifests(json.loads(documents["index.json"]), documents):
        config = documents.get(_blob(manifest["config"]["digest"]))
        if config is not None and _diff_ids(config) == layers and len(manifest["layers"]) == len(layers):
            described = zip(layers, manifest["layers"], strict=True)
            return SavedImage(config.decode(), tuple(_described(diff_id, blob, sizes) for diff_id, blob in described))
    return None


def _described(diff_id: str, blob: dict[str, Any], sizes: dict[str, int]) -> SavedLayer:
    member = _blob(blob["digest"])
    return SavedLayer(diff_id, member, sizes.get(member), blob["digest"], blob["mediaType"])


def _manifests(index: dict[str, Any], documents: dict[str, bytes]) -> Iterator[dict[str, Any]]:
    for descriptor in index.get("manifests") or ():
        content = documents.get(_blob(descriptor["digest"]))
        document = json.loads(content) if content else {}
        if "manifests" in document:
            yield from _manifests(document, documents)
        elif "layers" in document:
            yield document


def _from_manifest(
    documents: dict[str, bytes], sizes: dict[str, int], links: dict[str, str], layers: list[str]
) -> SavedImage | None:
    for entry in json.loads(documents.get("manifest.json", b"[]")):
        config = documents.get(entry["Config"])
        if config is not None and _diff_ids(config) == layers and len(entry["Layers"]) == len(layers):
            members = [links.get(name, str(name)) for name in entry["Layers"]]
            placed = zip(layers, members, strict=True)
            return SavedImage(
                config.decode(), tuple(SavedLayer(diff_id, name, sizes.get(name)) for diff_id, name in placed)
            )
    return None


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _diff_ids(config: bytes) -> list[str] | None:
    document = json.loads(config)
    return (document.get("rootfs") or {}).get("diff_ids") if isinstance(document, dict) else None
