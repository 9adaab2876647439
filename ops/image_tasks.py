"""The commands of a stack's image: its base, its steps, its verification, and its way to every node."""

from pathlib import Path
from typing import Any

from ops.errors import OperationError
from ops.image_building import Builder, build_step, build_verified, ensure_base
from ops.image_sharing import SharedImage, share_image
from ops.remote import run_on_node
from spec.chain import PatchChain
from spec.chain_files import read_chain
from spec.connection import Connection
from spec.dockerfile import Expected, finished_identity
from spec.errors import SpecificationError
from spec.party import Party
from spec.release import BasePlan

_PATCHES = Path("patches")
"""Commands run in the project's folder."""


def base(request: dict[str, Any]) -> Any:
    """Brings the base to the node that builds.

    Args:
        request: `connection`, `storage_folder`, `step_timeout_seconds`, `base` (reference, pull, archive).
    """
    return ensure_base(_builder(request), BasePlan.model_validate(request["base"]))


def step(request: dict[str, Any]) -> Any:
    """Builds the image of one step; one that the node has already needs no source, as when a Release is taken back.

    Args:
        request: as for `base`, and `chain` (name), `name`, `identity`, `reference`, `changes` of the step.
    """
    builder = _builder(request)
    if found := builder.built(request["reference"], request["identity"]):
        return found
    chain = _chain(request)
    planned = next((one for one in chain.steps if one.identity == request["identity"]), None)
    if planned is None:
        raise OperationError(_other_source(request))
    return build_step(builder, chain, BasePlan.model_validate(request["base"]), planned)


def verify(request: dict[str, Any]) -> Any:
    """Verifies the finished image from inside.

    Args:
        request: as for `base`, and `chain` (name), `name`, `identity`, `reference`, `expected`.
    """
    builder, expected = _builder(request), Expected.model_validate(request["expected"])
    if found := builder.built(request["reference"], request["identity"]):
        return found
    chain = _chain(request)
    if finished_identity(chain, expected) != request["identity"]:
        raise OperationError(_other_source(request))
    return build_verified(builder, chain, BasePlan.model_validate(request["base"]), expected)


def share(request: dict[str, Any]) -> Any:
    """Brings the image to all nodes at once, from node to node.

    Args:
        request: `source` and `receivers` (a Party each), `image` (reference, identity, layers, architecture).
    """
    receivers = [Party.model_validate(one) for one in request["receivers"]]
    share_image(_image(request), Party.model_validate(request["source"]), receivers)
    return request["image"]


def on_node(request: dict[str, Any]) -> Any:
    """Makes sure that one node has the image, its cache folder, and no more old images of the chain than are kept.

    Args:
        request: `source`, `node` (a Party each), `image`, `cache_folder`, `chain` (name or none), `kept`.
    """
    node = Party.model_validate(request["node"])
    share_image(_image(request), Party.model_validate(request["source"]), [node])
    _run(node, "make-cache", {"cache_folder": request["cache_folder"]})
    if request["chain"]:
        asked = {"chain": request["chain"], "keep": request["kept"], "reference": request["image"]["reference"]}
        _run(node, "image-prune", asked)
    return request["image"]


def _builder(request: dict[str, Any]) -> Builder:
    return Builder(
        Connection.model_validate(request["connection"]), request["storage_folder"], request["step_timeout_seconds"]
    )


def _image(request: dict[str, Any]) -> SharedImage:
    image = request["image"]
    return SharedImage(image["reference"], image["identity"], tuple(image["layers"]), image["architecture"])


def _run(node: Party, verb: str, request: dict[str, Any]) -> Any:
    assert node.connection is not None
    return run_on_node(node.connection, node.storage_folder, verb, request)


def _chain(request: dict[str, Any]) -> PatchChain:
    try:
        return read_chain(_PATCHES / request["chain"])
    except SpecificationError as error:
        raise OperationError(f"{_other_source(request)}\n{error}") from None


def _other_source(request: dict[str, Any]) -> str:
    return (
        f"{request['name']} with the identity {request['identity'][:16]} is not on {request['connection']['node']}, "
        f"and patches/{request['chain']} describes another one: run the update again, or check out its commit"
    )
