"""Writes those layers of an image that other nodes lack as files, ready to be copied to them."""

import errno
import hashlib
import json
import os
import shutil
import tarfile
import time
from pathlib import Path
from typing import IO, Any, cast

from runtime.common.file_hashes import CHUNK_BYTES, sha256_of
from runtime.common.image_identity import image_identity
from runtime.node.docker import inspect
from runtime.node.errors import NodeTaskError
from runtime.node.files import locked, sync_folder
from runtime.node.image.missing import layer_file
from runtime.node.image.room import free_bytes
from runtime.node.image.saved import SavedImage, SavedLayer, plain, saved_image, saving, told
from runtime.node.image.store import ImageStore, image_store, layers_of, name_of
from runtime.node.progress import tell

CONFIG_FILE = "config.json"
_GIVEN_UP_SECONDS = 24 * 3600


def export(request: dict[str, Any]) -> dict[str, Any]:
    """Writes the image's configuration and its layers from `held` on; what an earlier export wrote is used again.

    Args:
        request: `reference`, `layers` (diff ids that it must have), `held` (how many of the lowest are not needed),
            `storage_folder`.

    Returns:
        `folder` and `files` in it: `path` (relative), `size_bytes`, `sha256`. Each layer is uncompressed and its file
        named by its diff id.

    Raises:
        NodeTaskError: the node has no such image, its layers are others, a layer is damaged or there is no room.
    """
    layers, storage_folder = request["layers"], Path(request["storage_folder"])
    image = _image(request["reference"], layers)
    identity = image_identity(layers, image.get("Config") or {}, image["Architecture"])
    folder = outgoing_folder(storage_folder, identity)
    with locked(folder.with_name(".lock")):
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)  # what an earlier export wrote is asked for again, so it was not given up
        wanted = list(dict.fromkeys(layers[request["held"] :]))
        _write_all(image, image_store(), storage_folder, folder, wanted)
        names = [CONFIG_FILE, *(layer_file(diff_id) for diff_id in wanted)]
        return {"folder": str(folder), "files": [_described(folder / name) for name in names]}


def discard_export(request: dict[str, Any]) -> dict[str, Any]:
    """Removes what `export` wrote for the image of `identity`, once every node has it, and what was forgotten here."""
    folder = outgoing_folder(Path(request["storage_folder"]), request["identity"])
    with locked(folder.with_name(".lock")):
        there = folder.is_dir()
        shutil.rmtree(folder, ignore_errors=True)
        _remove_given_up(folder.parent)
    return {"removed": there}


def _remove_given_up(outgoing: Path) -> None:
    """Removes what was written for shares that were given up: nobody has asked for it for a day."""
    for folder in outgoing.iterdir():
        if folder.is_dir() and time.time() - folder.stat().st_mtime > _GIVEN_UP_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
            tell(f"removed {folder}: the transfer of that image was given up")


def outgoing_folder(storage_folder: Path, identity: str) -> Path:
    """Returns where the files of an image are written for other nodes."""
    return storage_folder / "images" / "outgoing" / identity.removeprefix("sha256:")


def _image(reference: str, layers: list[str]) -> dict[str, Any]:
    image = inspect("image", reference)
    if image is None:
        raise NodeTaskError(f"this node has no image {reference}, so it cannot give it to others; build it here first")
    found = layers_of(image)
    if found != layers:
        raise NodeTaskError(
            f"{reference} on this node has {len(found)} layers ending with {found[-1:]}, expected were {len(layers)} "
            f"ending with {layers[-1:]}: it is another image under the same name; build it anew"
        )
    return image


def _write_all(image: dict[str, Any], store: ImageStore, storage_folder: Path, folder: Path, wanted: list[str]) -> None:
    for unfinished in folder.glob(".*.unfinished"):
        unfinished.unlink()
    absent = [diff_id for diff_id in wanted if not (folder / layer_file(diff_id)).exists()]
    if not absent and (folder / CONFIG_FILE).exists():
        return
    saved = saved_image(image, store, storage_folder)
    tell(f"exporting {len(absent)} layers of {name_of(image)}")
    try:
        _write_config(saved, image, folder / CONFIG_FILE)
        if absent:
            _write_layers(image["Id"], _sources(saved, absent, folder), folder)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise NodeTaskError(f"{folder} has no room left for the image's layers: free room there") from None
    sync_folder(folder)


def _sources(saved: SavedImage, absent: list[str], folder: Path) -> dict[str, SavedLayer]:
    """Returns the wanted layers by their files' names in the archive.

    Raises:
        NodeTaskError: the image store lacks one, or the folder has too little room.
    """
    layers = {layer.diff_id: layer for layer in saved.layers}
    wanted = [layers[diff_id] for diff_id in absent]
    for layer in wanted:
        if layer.size_bytes is None:
            raise NodeTaskError(
                f"this node runs the image but its Docker no longer holds the content of layer {layer.diff_id}: "
                "pull or build the image here again, or send it from another node"
            )
    needed, free = sum(layer.size_bytes or 0 for layer in wanted), free_bytes(folder)
    if free < needed:
        raise NodeTaskError(
            f"{folder} has {free} bytes free and the layers to be sent need {needed}: free {needed - free} bytes there"
        )
    return {layer.member: layer for layer in wanted}


def _write_config(saved: SavedImage, image: dict[str, Any], path: Path) -> None:
    config = json.loads(saved.config)
    written = image_identity(layers_of(image), config.get("config") or {}, config["architecture"])
    shown = image_identity(layers_of(image), image.get("Config") or {}, image["Architecture"])
    if written != shown:
        raise NodeTaskError(
            f"`docker save` writes {image['Id']} as image {written} and `docker image inspect` shows {shown}: their "
            "Cmd, Entrypoint, Env, User or WorkingDir differ, so other nodes could not check it; build it anew"
        )
    _replace(path, lambda file: file.write(saved.config.encode()))


def _write_layers(identifier: str, sources: dict[str, SavedLayer], folder: Path) -> None:
    left = dict(sources)
    with saving(identifier, to_the_end=False) as archive:
        for member in told(archive):
            layer = left.pop(member.name, None) if member.isfile() else None
            if layer is not None:
                _write_layer(archive, member, folder / layer_file(layer.diff_id), layer.diff_id)
                tell(f"layer {len(sources) - len(left)} of {len(sources)} exported")
            if not left:
                return
    raise NodeTaskError(
        f"`docker save` did not write {sorted(left)}, which it wrote before: the image changed meanwhile; run it again"
    )


def _write_layer(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, diff_id: str) -> None:
    def copy(file: IO[bytes]) -> None:
        digest = hashlib.sha256()
        with plain(cast(IO[bytes], archive.extractfile(member))) as content:
            while chunk := content.read(CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
        if f"sha256:{digest.hexdigest()}" != diff_id:
            raise NodeTaskError(
                f"layer {diff_id} of the image came out of Docker as sha256:{digest.hexdigest()}: the image store of "
                "this node is damaged; remove the image and build or pull it again"
            )

    _replace(target, copy)


def _replace(target: Path, write: Any) -> None:
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        with unfinished.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def _described(path: Path) -> dict[str, Any]:
    sha256 = sha256_of(path) if path.name == CONFIG_FILE else path.name.removesuffix(".tar")
    return {"path": path.name, "size_bytes": path.stat().st_size, "sha256": sha256}
