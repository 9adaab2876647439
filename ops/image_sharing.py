"""Brings a built image from one node to others: only the layers that are missing, over the fabric."""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from ops.errors import OperationError
from ops.remote import run_on_node
from ops.transfers import Receiver, TransferFile, brought
from spec.party import Party

_LONG_SECONDS = 4 * 3600
# Once for the files that arrive, twice for Docker while it loads them (measured with 20.10 and 26.1), and a reserve.
_AMPLE_FACTOR = 4

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class SharedImage:
    """An image by its content.

    Attributes:
        reference: its tag on every node.
        identity: hash of layers and configuration.
        layers: diff ids, lowest first.
        architecture: as Docker names it.
    """

    reference: str
    identity: str
    layers: tuple[str, ...]
    architecture: str


def share_image(image: SharedImage, source: Party, receivers: Sequence[Party]) -> dict[str, int]:
    """Brings an image to every receiver that does not have it with this content.

    Args:
        image: what is brought.
        source: a node that has it.
        receivers: the nodes that get it; the source may be among them.

    Returns:
        Bytes that moved to each receiver that lacked it, by its node.

    Raises:
        OperationError: a node cannot be reached, has too little disk, another platform or a damaged image store.
    """
    asked = _on_all(receivers, lambda node: _run(node, "image-missing", _asked(image, node)))
    found = {node: answer for node, answer in asked if not answer["present"]}
    if not found:
        return {}
    if source in found:
        raise OperationError(
            f"{image.reference} on {source.node} is not the one that was built: `docker rmi {image.reference}` there, "
            "then `pulumi up --replace '**image-verify'` (or image-base, for an image without steps)"
        )
    moved: dict[str, int] = {}
    refused: dict[Party, Any] = {}
    for held in sorted({answer["held"] for answer in found.values()}):
        moved |= _send(image, source, {node: one for node, one in found.items() if one["held"] == held}, held, refused)
    if refused:
        moved |= _send(image, source, refused, 0, {})
    _run(source, "image-discard-export", {"storage_folder": source.storage_folder, "identity": image.identity})
    return moved


def _send(
    image: SharedImage, source: Party, receivers: dict[Party, Any], held: int, refused: dict[Party, Any]
) -> dict[str, int]:
    """Sends all but the lowest `held` layers to receivers, and notes those whose image store needs all of them.

    Args:
        image: what is sent.
        source: the node that has it.
        receivers: the nodes that get it, each with what it answered to `image-missing`.
        held: how many of the lowest layers all of them have.
        refused: gets the nodes to which everything has to be sent.
    """
    asked = {
        "reference": image.reference,
        "layers": image.layers,
        "held": held,
        "storage_folder": source.storage_folder,
    }
    exported = _run(source, "image-export", asked)
    files = [TransferFile(**file) for file in exported["files"]]
    # A layer's file is named by its diff id, which is the hash of its content.
    sizes = {f"sha256:{file.sha256}": file.size_bytes for file in files if f"sha256:{file.sha256}" in image.layers}
    close = [node for node, found in receivers.items() if not _has_ample_room(found, sum(sizes.values()))]
    _on_all(close, lambda node: _run(node, "image-missing", _room(image, node, sizes)))
    targets = [Receiver(node, _folder(image, node)) for node in receivers]
    # Until the image is loaded no other share may take what came for the remains of one that was given up.
    with brought(source, exported["folder"], targets, files, _report) as received:
        loaded = _on_all(list(receivers), lambda node: _run(node, "image-load", _load(image, node, held)))
    for node, answer in loaded:
        if answer["needs_all"]:
            _report(f"{node.node}: {answer['why']}; all layers are sent")
            refused[node] = receivers[node]
    for node, result in received.items():
        _report(f"{node}: {len(sizes)} of {len(image.layers)} layers came, {result.moved_bytes:,} bytes moved")
    return {node: result.moved_bytes for node, result in received.items()}


def _has_ample_room(found: dict[str, Any], bytes_to_load: int) -> bool:
    """Tells whether a node surely has room; one that may not is asked once more, with what arrives there."""
    return min(found["docker_free_bytes"], found["storage_free_bytes"]) > _AMPLE_FACTOR * bytes_to_load


def _asked(image: SharedImage, node: Party) -> dict[str, Any]:
    return {
        "reference": image.reference,
        "identity": image.identity,
        "layers": image.layers,
        "architecture": image.architecture,
        "storage_folder": node.storage_folder,
        "folder": _folder(image, node),
    }


def _room(image: SharedImage, node: Party, sizes: dict[str, int]) -> dict[str, Any]:
    return {**_asked(image, node), "missing_sizes": sizes}


def _load(image: SharedImage, node: Party, held: int) -> dict[str, Any]:
    return {
        "reference": image.reference,
        "identity": image.identity,
        "layers": image.layers,
        "held": held,
        "folder": _folder(image, node),
        "storage_folder": node.storage_folder,
    }


def _folder(image: SharedImage, node: Party) -> str:
    return f"{node.storage_folder}/images/incoming/{image.identity.removeprefix('sha256:')[:32]}"


def _run(node: Party, verb: str, request: dict[str, Any]) -> Any:
    assert node.connection is not None
    return run_on_node(node.connection, node.storage_folder, verb, request, timeout_seconds=_LONG_SECONDS)


def _on_all(nodes: Sequence[Party], ask: Callable[[Party], Answer]) -> list[tuple[Party, Answer]]:
    with ThreadPoolExecutor(max(1, len(nodes))) as pool:
        return list(zip(nodes, pool.map(ask, nodes), strict=True))


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
