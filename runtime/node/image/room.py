"""Whether a node has room for an image's layers, before anything is moved."""

import shutil
from pathlib import Path

from runtime.node.errors import NodeTaskError
from runtime.node.image.store import ImageStore

# Docker writes each new layer twice: the classic store unpacks the archive for a while and then the layer, the
# containerd store keeps the layer's blob beside its snapshot. tests/lab/test_image_layers.py measures it.
LOAD_FACTOR = 2


def existing_parent(path: Path) -> Path:
    """Returns the nearest folder above that exists, on whose file system the path will be."""
    return path if path.exists() else existing_parent(path.parent)


def free_bytes(path: Path) -> int:
    """Returns what may still be written where the path is or will be."""
    return shutil.disk_usage(existing_parent(path)).free


def check_room(arriving: Path, bytes_to_arrive: int, store: ImageStore, bytes_to_load: int) -> None:
    """Checks that layers can arrive in a folder and be loaded from it.

    Args:
        arriving: folder of the layers' files.
        bytes_to_arrive: what is not there yet.
        store: where they are loaded.
        bytes_to_load: uncompressed bytes of all layers that are loaded.

    Raises:
        NodeTaskError: too little room; names the path, what is needed, what is free and the way out.
    """
    needed_to_load = LOAD_FACTOR * bytes_to_load
    folder, engine = existing_parent(arriving), existing_parent(store.folder)
    if folder.stat().st_dev == engine.stat().st_dev:
        _require(folder, bytes_to_arrive + needed_to_load, f"to receive the layers and load them into {store.folder}")
        return
    _require(folder, bytes_to_arrive, "to receive the layers")
    _require(engine, needed_to_load, "to load the layers, which Docker writes twice meanwhile")


def _require(path: Path, needed: int, what: str) -> None:
    free = free_bytes(path)
    if free < needed:
        raise NodeTaskError(
            f"{path} has {free} bytes free and {needed} are needed {what}: free {needed - free} bytes there (old "
            "images: `docker image ls`, `docker image prune`), or keep fewer images of each chain"
        )
