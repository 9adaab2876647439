"""The image on this node, by content."""

from typing import Any

from runtime.common.image_identity import image_identity
from runtime.node.docker import inspect


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
