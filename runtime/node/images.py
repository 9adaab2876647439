"""The image on this node, by content."""

from typing import Any

from runtime.common.image_identity import image_identity
from runtime.node.docker import inspect


def identity(reference: str) -> dict[str, Any]:
    """Returns the identity and the layers of the image, both none where the node does not have it."""
    image = inspect("image", reference)
    if image is None:
        return {"identity": None, "layers": None}
    layers = image["RootFS"]["Layers"]
    return {
        "identity": image_identity(layers, image.get("Config") or {}, image["Architecture"]),
        "layers": layers,
    }
