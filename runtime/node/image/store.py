"""What the node's Docker engine is and which images it holds, whichever of its two image stores it uses."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.node.docker import docker
from runtime.node.errors import NodeTaskError

CLASSIC, CONTAINERD = "classic", "containerd"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_CONTAINERD_DRIVER = "io.containerd.snapshotter.v1"
# Where a containerd that the system started listens and keeps its data; dockerd looks for it there too.
_SYSTEM_CONTAINERD_SOCKET = Path("/run/containerd/containerd.sock")
_SYSTEM_CONTAINERD_FOLDER = Path("/var/lib/containerd")


@dataclass(frozen=True)
class ImageStore:
    """Where and how the engine keeps images.

    Attributes:
        kind: `classic` (layers in the engine's own store) or `containerd` (blobs and snapshots).
        version: of the Docker engine.
        architecture: of the node, as images name it, such as `arm64`.
        folder: on whose file system images take room.
    """

    kind: str
    version: str
    architecture: str
    folder: Path


def image_store() -> ImageStore:
    """Asks the Docker engine of this node.

    Raises:
        NodeTaskError: it does not answer.
    """
    told = json.loads(docker("info", "--format", "{{json .}}").stdout)
    if not told.get("ServerVersion"):
        raise NodeTaskError(f"Docker does not answer on this node: {told.get('ServerErrors')}; start it")
    kind = CONTAINERD if ["driver-type", _CONTAINERD_DRIVER] in (told.get("DriverStatus") or []) else CLASSIC
    machine, root = str(told["Architecture"]), Path(told["DockerRootDir"])
    system = kind == CONTAINERD and _SYSTEM_CONTAINERD_SOCKET.exists() and _SYSTEM_CONTAINERD_FOLDER.is_dir()
    folder = _SYSTEM_CONTAINERD_FOLDER if system else root
    return ImageStore(kind, told["ServerVersion"], _ARCHITECTURES.get(machine, machine), folder)


def local_images() -> list[dict[str, Any]]:
    """Returns what `docker image inspect` says of every image here, also of those without a name."""
    identifiers = sorted(set(docker("image", "ls", "--all", "--quiet", "--no-trunc").stdout.split()))
    if not identifiers:
        return []
    # One that goes away meanwhile, or is for another platform, is left out of the answer and makes the exit code 1.
    return json.loads(docker("image", "inspect", *identifiers, check=False).stdout or "[]")


def layers_of(image: dict[str, Any]) -> list[str]:
    """Returns the diff ids of an inspected image, lowest first."""
    return (image.get("RootFS") or {}).get("Layers") or []


def name_of(image: dict[str, Any]) -> str:
    """Returns a name of an inspected image for messages, its Id where it has none."""
    return (image.get("RepoTags") or [image["Id"]])[0]


def common_prefix(one: list[str], other: list[str]) -> int:
    """Returns how many of the lowest layers are equal."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def refuse_other_architecture(store: ImageStore, architecture: str) -> None:
    """Raises NodeTaskError unless images of this architecture run on the node."""
    if store.architecture != architecture:
        raise NodeTaskError(
            f"the image is for {architecture} and this node is {store.architecture}: it cannot run here. Build it on "
            f"a {store.architecture} node, or take a base image for {store.architecture}"
        )
