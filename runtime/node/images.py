"""The image on this node, by content."""

from pathlib import Path
from typing import Any

from runtime.common.image_identity import image_identity
from runtime.node.docker import docker, inspect
from runtime.node.progress import tell


def identity(request: dict[str, Any]) -> dict[str, Any]:
    """Returns `identity` and `layers` of the image `reference`, both none where the node does not have it."""
    image = inspect("image", request["reference"])
    if image is None:
        return {"identity": None, "layers": None}
    layers = image["RootFS"]["Layers"]
    return {
        "identity": image_identity(layers, image.get("Config") or {}, image["Architecture"]),
        "layers": layers,
    }


def pull(request: dict[str, Any]) -> dict[str, Any]:
    """Pulls `pull` (by digest) unless the node has it, names it `reference` and returns its identity and layers.

    Raises:
        NodeTaskError: the registry did not give it.
    """
    if inspect("image", request["pull"]) is None:
        tell(f"pulling {request['pull']}")
        docker("pull", "--quiet", request["pull"])
    docker("tag", request["pull"], request["reference"])
    return identity(request)


def make_cache(request: dict[str, Any]) -> dict[str, Any]:
    """Makes the folder in which the engine keeps what it compiles for this image."""
    Path(request["cache_folder"]).mkdir(parents=True, exist_ok=True)
    return {"made": True}
