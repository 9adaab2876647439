"""Which layers of an image this node already has, so that only the others are sent."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.node.errors import NodeTaskError
from runtime.node.image.content import identity
from runtime.node.image.incoming import remove_given_up
from runtime.node.image.room import check_room, free_bytes
from runtime.node.image.saved import SavedLayer, forget_absent, saved_image
from runtime.node.image.store import (
    CONTAINERD,
    ImageStore,
    common_prefix,
    image_store,
    layers_of,
    local_images,
    name_of,
    refuse_other_architecture,
)
from runtime.node.progress import tell


@dataclass(frozen=True)
class Held:
    """The layers that a load needs not be given.

    Attributes:
        count: how many of the lowest wanted layers.
        blobs: with the containerd store, the blobs that hold them; a new image has to name them.
    """

    count: int
    blobs: tuple[SavedLayer, ...] = ()


def missing(request: dict[str, Any]) -> dict[str, Any]:
    """Says how many of an image's lowest layers are here and usable, and what room there is.

    Args:
        request: `layers` (diff ids, lowest first), `architecture` (of the image), `storage_folder`; with `reference`
            and `identity` an image that is here under that name is compared first; with `folder` (where the files will
            arrive) what other images left beside it is removed, if their transfer was given up; with `missing_sizes`
            (uncompressed bytes by diff id) the room is checked too, and files that are there already are not counted
            again.

    Returns:
        `present` (the image itself is here), `held`, `image_store` (`classic` or `containerd`), `docker_folder`,
        `docker_free_bytes`, `storage_free_bytes`.

    Raises:
        NodeTaskError: the image is for another architecture, or there is too little room.
    """
    store, storage_folder = image_store(), Path(request["storage_folder"])
    refuse_other_architecture(store, request["architecture"])
    present = "reference" in request and identity(request)["identity"] == request["identity"]
    held = Held(len(request["layers"])) if present else held_layers(store, request["layers"], storage_folder)
    if "folder" in request:
        remove_given_up(Path(request["folder"]), is_wanted=not present)
    sizes = request.get("missing_sizes")
    if sizes is not None:
        folder = Path(request["folder"])
        to_arrive = sum(size for diff_id, size in sizes.items() if not arrived(folder, diff_id, size))
        check_room(folder, to_arrive, store, sum(sizes.values()))
    return {
        "present": present,
        "held": held.count,
        "image_store": store.kind,
        "docker_folder": str(store.folder),
        "docker_free_bytes": free_bytes(store.folder),
        "storage_free_bytes": free_bytes(storage_folder),
    }


def held_layers(store: ImageStore, layers: list[str], storage_folder: Path) -> Held:
    """Returns the longest run of the lowest layers that one local image has, with all that a load needs of them.

    The classic store finds a layer by all diff ids up to it. The containerd store loads an image only from blobs, so
    there the layers count whose blobs are present, as `docker save` shows.
    """
    images = local_images()
    forget_absent(storage_folder, {image["Id"] for image in images})
    ranked = sorted(images, key=lambda image: common_prefix(layers_of(image), layers), reverse=True)
    best = Held(0)
    for image in ranked:
        count = common_prefix(layers_of(image), layers)
        if count <= best.count:
            break
        found = _usable(image, count, store, storage_folder)
        best = max(best, found, key=lambda held: held.count)
    return best


def _usable(image: dict[str, Any], count: int, store: ImageStore, storage_folder: Path) -> Held:
    if store.kind != CONTAINERD:
        return Held(count)
    try:
        blobs = saved_image(image, store, storage_folder).layers[:count]
    except NodeTaskError as error:
        # Some blob of it is gone, or it is for another platform: what is here of it does not make a new image.
        tell(f"layers of {name_of(image)} cannot be used again: {error}")
        return Held(0)
    present = [blob.size_bytes is not None and blob.digest is not None for blob in blobs]
    usable = present.index(False) if False in present else count
    return Held(usable, blobs[:usable])


def arrived(folder: Path, diff_id: str, size_bytes: int) -> bool:
    """Tells whether a layer's file is whole in the folder."""
    path = folder / layer_file(diff_id)
    return path.is_file() and path.stat().st_size == size_bytes


def layer_file(diff_id: str) -> str:
    """Returns the name of a layer's file: the hash of its content."""
    return f"{diff_id.removeprefix('sha256:')}.tar"
