"""Makes an image out of the layers that were sent and those that the node has, or leaves the node as it was."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Any, cast

from runtime.common.image_identity import image_identity
from runtime.node.docker import docker, inspect
from runtime.node.errors import NodeTaskError
from runtime.node.files import locked
from runtime.node.image.archive import Parts, write_archive
from runtime.node.image.export import CONFIG_FILE
from runtime.node.image.missing import Held, held_layers, layer_file
from runtime.node.image.room import check_room
from runtime.node.image.store import ImageStore, image_store, layers_of, refuse_other_architecture
from runtime.node.progress import tell

# What is being loaded has a name of its own, so that the image's name never means something unchecked.
_LOADING = "gb10-serving/loading"
_CHECK_CONTAINER = "gb10-serving-image-check"


def load(request: dict[str, Any]) -> dict[str, Any]:
    """Loads an image of which the node holds the lowest layers; an image that is there already is no work.

    Args:
        request: `reference` (the name it gets), `folder` (of the files that `image-export` wrote), `layers` (diff ids,
            lowest first), `held` (how many of the lowest were not sent), `identity`, `storage_folder`.

    Returns:
        `loaded` and `needs_all`. Where `needs_all` is true the node has changed meanwhile or its store does not take a
        part of an image (`why`): nothing was changed, the files are kept, and the caller sends all layers. Otherwise
        the image is there under its name, was compared and tried, and the folder is gone.

    Raises:
        NodeTaskError: a file is absent or of another image, there is no room, or Docker refuses the whole image.
    """
    storage_folder, folder = Path(request["storage_folder"]), Path(request["folder"])
    with locked(storage_folder / "images" / ".load.lock"):
        if identity_of(request["reference"]) != request["identity"]:
            why = _load(request, folder, storage_folder)
            if why is not None:
                return {"loaded": False, "needs_all": True, "why": why}
        shutil.rmtree(folder, ignore_errors=True)
    return {"loaded": True, "needs_all": False, "why": None}


def identity_of(reference: str) -> str | None:
    """Returns the identity of an image here, none where there is none of that name."""
    image = inspect("image", reference)
    if image is None:
        return None
    return image_identity(layers_of(image), image.get("Config") or {}, image["Architecture"])


def _load(request: dict[str, Any], folder: Path, storage_folder: Path) -> str | None:
    """Returns why all layers are needed, nothing if the image is there."""
    store, count = image_store(), request["held"]
    config = _checked_config(request, folder, store)
    held = held_layers(store, request["layers"], storage_folder)
    if held.count < count:
        return f"this node holds {held.count} of the lowest layers and {count} were expected"
    parts = Parts(config, request["layers"], Held(count, held.blobs[:count]), folder)
    _require_files(parts, store)
    _remove_leftovers()
    try:
        failure = _try_to_load(store, parts, request["identity"])
        if failure is None:
            docker("tag", _loading_name(request["identity"]), request["reference"])
            return None
    finally:
        _remove_leftovers()
    if count == 0 or "no space left" in failure:
        raise NodeTaskError(
            f"this node's Docker ({store.version}, {store.kind} image store) does not take {request['reference']}: "
            f"{failure}. Nothing was changed; the files are in {folder}"
        )
    return failure


def _checked_config(request: dict[str, Any], folder: Path, store: ImageStore) -> bytes:
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise NodeTaskError(f"{path} is not on this node: the image's files did not arrive; run `pulumi up` again")
    content = path.read_bytes()
    config = json.loads(content)
    refuse_other_architecture(store, config["architecture"])
    layers = config["rootfs"]["diff_ids"]
    found = image_identity(layers, config.get("config") or {}, config["architecture"])
    if layers != request["layers"] or found != request["identity"]:
        raise NodeTaskError(
            f"{path} is the configuration of image {found}, expected was {request['identity']}: another image was "
            f"sent; remove {folder} and run `pulumi up` again"
        )
    return content


def _require_files(parts: Parts, store: ImageStore) -> None:
    paths = [parts.folder / layer_file(diff_id) for diff_id in parts.sent]
    for path in paths:
        if not path.is_file():
            raise NodeTaskError(f"{path} is not on this node: a layer did not arrive; run `pulumi up` again")
    check_room(parts.folder, 0, store, sum(path.stat().st_size for path in paths))


def _try_to_load(store: ImageStore, parts: Parts, identity: str) -> str | None:
    """Loads under the name for what is being loaded and tries the image; returns what is wrong with it."""
    name = _loading_name(identity)
    tell(f"loading {len(parts.sent)} of {len(parts.layers)} layers")
    failure = _docker_load(store, parts, name)
    if failure is not None:
        return failure
    found = identity_of(name)
    if found != identity:
        return f"what was loaded is {found}, sent was {identity}"
    tried = docker(
        *("create", "--name", _CHECK_CONTAINER, "--network", "none", "--entrypoint", "/nothing", name), check=False
    )
    return tried.stderr.strip() if tried.returncode else None


def _docker_load(store: ImageStore, parts: Parts, name: str) -> str | None:
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            ["docker", "load", "--quiet"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=words
        )
        stream = cast(IO[bytes], process.stdin)
        try:
            write_archive(store.kind, parts, name, stream)
            stream.close()
        except BrokenPipeError:
            # Docker ended early; its words say why.
            tell("Docker stopped reading")
        except BaseException:
            process.kill()
            raise
        finally:
            process.wait()
        words.seek(0)
        return None if process.returncode == 0 else words.read().decode(errors="replace").strip()


def _loading_name(identity: str) -> str:
    return f"{_LOADING}:{identity.removeprefix('sha256:')}"


def _remove_leftovers() -> None:
    """Removes the container and the names of this load, or of one that was killed; an image of another name stays."""
    docker("rm", "--force", _CHECK_CONTAINER, check=False)
    names = docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", _LOADING).stdout.split()
    if names:
        docker("rmi", *names)
