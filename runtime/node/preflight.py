"""May this node run its rank, once the ranks that make room are gone? Looks at everything and changes nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime.fabric.request import FabricRequest
from runtime.fabric.resolving import Patience, Surroundings, resolve
from runtime.fabric.result import FabricError
from runtime.node import checks, claims, host_memory, weights
from runtime.node.docker import containers_labelled, containers_of
from runtime.node.errors import NodeTaskError
from runtime.node.image.content import identity
from runtime.node.progress import tell
from runtime.node.ranks import process_ids


def preflight(request: dict[str, Any]) -> dict[str, Any]:
    """Checks the node for one rank.

    Args:
        request: `stack`, `group`, `storage_folder`, `image` (`node`, `reference`, `identity`, `layers`), `weights`
            (each what `weights.status` reads, and `manifest`), `mounts` (folders), `devices` (of the node), `fabric`
            (for runtime/fabric), `sysfs_folder`, `ports`, `required_bytes`, `floor_percent`, `gpus`,
            `shared_memory_bytes`, `open_files`, `controller_seconds`, `leaving` (names of stacks that will be gone
            before this rank starts).

    Raises:
        NodeTaskError: listing everything that is wrong.
    """
    own = process_ids(_leaving_containers(request))
    found = [
        _claim(claims.refuse_other_stack, request),
        _claim(claims.refuse_other_group, request),
        _image(request["image"]),
        *(_weights(expected) for expected in request["weights"]),
        checks.mount_sources(request["mounts"]),
        checks.devices(request["devices"]),
        _fabric(request["fabric"], request["sysfs_folder"]),
        *(checks.port(number, own) for number in request["ports"]),
        checks.memory(request["required_bytes"], own),
        host_memory.earlyoom(request["floor_percent"]),
        checks.accelerators(own) if request["gpus"] else None,
        checks.shared_memory(request["shared_memory_bytes"]),
        checks.open_files(request["open_files"]),
        checks.disk(request["storage_folder"]),
        checks.clock(request["controller_seconds"]),
    ]
    wrong = [text for text in found if text]
    if wrong:
        raise NodeTaskError("\n".join(wrong))
    for warning in host_memory.swap_warnings() if request["gpus"] else ():
        tell(f"warning: {warning}")
    tell("preflight passed")
    return {"passed": True}


def _leaving_containers(request: dict[str, Any]) -> list[str]:
    """Returns the containers whose memory and ports count as free."""
    own = containers_labelled(stack=request["stack"], group=request["group"])
    return [*own, *containers_of(request["leaving"])]


def _claim(refuse: Callable[[dict[str, Any]], None], request: dict[str, Any]) -> str | None:
    try:
        refuse(request)
    except NodeTaskError as error:
        return f"claim: {error}"
    return None


def _fabric(asked: dict[str, Any], sysfs_folder: str) -> str | None:
    """Finds devices, GID index and addresses as the rank will when it starts; what an image bakes in is its affair."""
    surroundings = Surroundings(Path(sysfs_folder), configuration_files=dict)
    try:
        resolve(FabricRequest.from_plain(asked), {}, surroundings, Patience(wait_seconds=0))
    except FabricError as error:
        return f"fabric: {error}"
    return None


def _image(expected: dict[str, Any]) -> str | None:
    found = identity(expected)
    if found["identity"] == expected["identity"]:
        return None
    if found["identity"] is None:
        return f"image: {expected['reference']} is not on this node: {_image_cure(expected)}"
    pairs = zip(expected["layers"], found["layers"], strict=False)
    differing = next((f"layer {index} is {b}, built was {a}" for index, (a, b) in enumerate(pairs) if a != b), None)
    reason = differing or (
        "its configuration differs"
        if len(expected["layers"]) == len(found["layers"])
        else f"it has {len(found['layers'])} layers, built were {len(expected['layers'])}"
    )
    return (
        f"image: {expected['reference']} on this node is not the one that was built: {reason}. Somebody retagged or "
        f"rebuilt it here: {_image_cure(expected)}"
    )


def _image_cure(expected: dict[str, Any]) -> str:
    return f"`pulumi up --replace '**image-{expected['node']}'` brings the one that was built"


def _weights(expected: dict[str, Any]) -> str | None:
    found = weights.status(expected)
    if found["complete"] and found["manifest"] == expected["manifest"]:
        return None
    why = found["why"] or f"the manifest here is {found['manifest']}, the deployment's is {expected['manifest']}"
    return f"weights: {expected['folder']} is not complete: {why}. `./fleet weights sync STACK` mends it"
