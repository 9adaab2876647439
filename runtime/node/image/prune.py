"""Keeps a number of old images of a chain and removes the oldest; nothing else is ever removed."""

import json
import re
from datetime import datetime
from typing import Any

from runtime.node.docker import docker, inspect
from runtime.node.errors import NodeTaskError
from runtime.node.image.store import common_prefix, layers_of, local_images
from runtime.node.progress import tell

CHAIN_LABEL = "gb10-serving.chain.name"
_OURS = "gb10-serving/"
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")


def prune(request: dict[str, Any]) -> dict[str, Any]:
    """Removes the names of old images of a chain.

    An image whose layers are all part of one that stays (an earlier step of the same chain) frees nothing: it stays
    and does not count.

    Args:
        request: `chain`, `keep` (how many stay beside the current one), `reference` (the current image).

    Returns:
        `removed`: the names that are gone. `used`: those that were to go and are held by a container.

    Raises:
        NodeTaskError: the current image is not here, so that what is old cannot be told.
    """
    current = inspect("image", request["reference"])
    if current is None:
        raise NodeTaskError(f"{request['reference']} is not on this node: old images are removed when the new is there")
    superfluous = surplus(local_images(), request["chain"], request["keep"], current["Id"])
    in_use = _used_images() if superfluous else set()
    removed, used = [], []
    for name, identifier in superfluous:
        free = not {identifier, name} & in_use and _removed(name)
        (removed if free else used).append(name)
    return {"removed": removed, "used": used}


def surplus(images: list[dict[str, Any]], chain: str, keep: int, current: str) -> list[tuple[str, str]]:
    """Returns name and Id of the images of a chain that are too many, oldest first.

    Args:
        images: what `docker image inspect` says of all.
        chain: whose label they carry.
        keep: how many stay beside the current one.
        current: Id of the current image.
    """
    kept = [layers_of(image) for image in images if image["Id"] == current]
    others = [image for image in images if image["Id"] != current and _is_of(image, chain) and _our_names(image)]
    surplus_images: list[dict[str, Any]] = []
    counted = 0
    for image in sorted(others, key=_arrived, reverse=True):
        layers = layers_of(image)
        if any(common_prefix(layers, other) == len(layers) for other in kept):
            continue
        if counted < keep:
            counted += 1
            kept.append(layers)
        else:
            surplus_images.append(image)
    return [(name, image["Id"]) for image in reversed(surplus_images) for name in _our_names(image)]


def _removed(name: str) -> bool:
    """Removes a name; Docker itself refuses the last one of an image that a new container took meanwhile."""
    result = docker("rmi", name, check=False)
    if result.returncode and "conflict" not in result.stderr:
        raise NodeTaskError(f"the old image {name} cannot be removed: {result.stderr.strip()}")
    if result.returncode == 0:
        tell(f"removed the old image {name}")
    return result.returncode == 0


def _is_of(image: dict[str, Any], chain: str) -> bool:
    labels = (image.get("Config") or {}).get("Labels") or {}
    return labels.get(CHAIN_LABEL) == chain


def _our_names(image: dict[str, Any]) -> list[str]:
    return sorted(name for name in image.get("RepoTags") or () if name.startswith(_OURS))


def _arrived(image: dict[str, Any]) -> tuple[int, int]:
    """When the image got its last name here; when it was made, where Docker does not say."""
    tagged = (image.get("Metadata") or {}).get("LastTagTime") or ""
    return _nanoseconds(tagged), _nanoseconds(image.get("Created") or "")


def _nanoseconds(text: str) -> int:
    """Returns a time as Docker writes it (RFC 3339, up to nine digits of a second) since 1970; 0 for none."""
    match = _TIME.fullmatch(text)
    if match is None:
        return 0
    whole, fraction, offset = match.groups(default="")
    seconds = datetime.fromisoformat(whole + ("+00:00" if offset == "Z" else offset)).timestamp()
    return int(seconds) * 10**9 + int(fraction.ljust(9, "0"))


def _used_images() -> set[str]:
    """Returns Ids and names of the images of all containers, running or not."""
    identifiers = docker("ps", "--all", "--quiet", "--no-trunc").stdout.split()
    if not identifiers:
        return set()
    # A container that ends meanwhile is left out of the answer.
    containers = json.loads(docker("container", "inspect", *identifiers, check=False).stdout or "[]")
    return {container["Image"] for container in containers} | {container["Config"]["Image"] for container in containers}
