"""The image on this node, by content."""

from pathlib import Path
from typing import Any

from runtime.common.image_identity import image_identity
from runtime.node.docker import docker, inspect
from runtime.node.progress import tell


def identity(request: dict[str, Any]) -> dict[str, Any]:
    """Returns `identity`, `layers`, `architecture` and our `labels` of the image `reference`; none if it is absent."""
    image = inspect("image", request["reference"])
    if image is None:
        return {"identity": None, "layers": None, "architecture": None, "labels": None}
    layers, config = image["RootFS"]["Layers"], image.get("Config") or {}
    labels = config.get("Labels") or {}
    return {
        "identity": image_identity(layers, config, image["Architecture"]),
        "layers": layers,
        "architecture": image["Architecture"],
        "labels": {key: value for key, value in labels.items() if key.startswith("gb10-serving.chain.")},
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


def untag(request: dict[str, Any]) -> dict[str, Any]:
    """Removes the name `reference`; an image that has another name stays."""
    if inspect("image", request["reference"]) is None:
        return {"removed": False}
    docker("rmi", "--no-prune", request["reference"])
    return {"removed": True}


def make_cache(request: dict[str, Any]) -> dict[str, Any]:
    """Makes the folder in which the engine keeps what it compiles for this image."""
    Path(request["cache_folder"]).mkdir(parents=True, exist_ok=True)
    return {"made": True}
