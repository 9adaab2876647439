"""The image of a stack: built, brought to its nodes and looked at without deploying anything."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from ops.errors import OperationError
from ops.image_building import Builder, build_step, build_verified, ensure_base
from ops.image_sharing import SharedImage, share_image
from ops.remote import run_on_node
from spec.chain import PatchChain
from spec.dockerfile import verify_request
from spec.party import party_of
from spec.release import Release

_VERIFY_SECONDS = 660

ChainOf = Callable[[str], PatchChain]
"""Reads a chain of patches/ by its name."""


@dataclass(frozen=True)
class JudgedImage:
    """What one node has under the tag of a stack's image.

    Attributes:
        node: its name.
        identity: hash of layers and configuration; none where the image is absent.
        is_as_built: whether it is what the building node has; none where that one has none.
        first_other_layer: number of the lowest layer that differs, from 0.
        report: of a verification from inside, made now.
    """

    node: str
    identity: str | None
    is_as_built: bool | None
    first_other_layer: int | None
    report: dict[str, Any] | None

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong with it."""
        return bool(self.is_as_built and (self.report is None or self.report["ok"]))

    def as_data(self) -> dict[str, Any]:
        """Returns it as plain data, for JSON."""
        return asdict(self)


def build_image(release: Release, chain_of: ChainOf) -> dict[str, Any]:
    """Builds the image of a Release on its building node, or pulls it, and returns identity and layers.

    Raises:
        OperationError: a step could not be built, or the finished image is not what its chain says.
    """
    plan = release.image
    builder = Builder(
        release.nodes[plan.build_on].connection,
        release.storage_folder,
        plan.chain.step_timeout_seconds if plan.chain else 0,
    )
    content = ensure_base(builder, plan.base)
    if plan.chain is None:
        return content
    chain = chain_of(plan.chain.name)
    for step in chain.steps:
        build_step(builder, chain, plan.base, step)
    return build_verified(builder, chain, plan.base, plan.chain.expected)


def bring_image(release: Release, content: dict[str, Any]) -> dict[str, int]:
    """Brings a built image to every node that runs a rank; returns the bytes that moved, by node."""
    image = SharedImage(release.image.reference, content["identity"], tuple(content["layers"]), content["architecture"])
    source = party_of(release.nodes[release.image.build_on], release.storage_folder)
    receivers = [party_of(release.nodes[node], release.storage_folder) for node in release.rank_nodes]
    return share_image(image, source, receivers)


def judge_images(
    release: Release, chain_of: ChainOf, nodes: list[str], reference: str | None = None
) -> list[JudgedImage]:
    """Compares the image on nodes with the one on the building node, and verifies it from inside on each.

    Args:
        release: whose nodes are asked.
        chain_of: reads the chain that says what the image must be.
        nodes: names of the nodes.
        reference: another image than the Release's: verified by the rules that hold for any image.

    Raises:
        OperationError: a node cannot be asked, or is none of the Release.
    """
    unknown = [node for node in nodes if node not in release.nodes]
    if unknown:
        raise OperationError(
            f"{', '.join(unknown)}: not in stack {release.stack}, which has {', '.join(release.nodes)}"
        )
    plan = release.image
    name = reference or plan.reference
    built = _content(release, plan.build_on, name)
    checks: dict[str, Any] | None = {} if reference else None
    if plan.chain and not reference:
        checks = verify_request(chain_of(plan.chain.name), plan.chain.expected)

    def judge(node: str) -> JudgedImage:
        found = _content(release, node, name)
        present = found["identity"] is not None
        report = None
        if present and checks is not None:
            report = _ask(release, node, "image-verify", {"reference": name, "checks": checks})
        return JudgedImage(
            node=node,
            identity=found["identity"],
            is_as_built=None if built["identity"] is None else found["identity"] == built["identity"],
            first_other_layer=_first_difference(built["layers"] or [], found["layers"] or []) if present else None,
            report=report,
        )

    with ThreadPoolExecutor(max(1, len(nodes))) as pool:
        return list(pool.map(judge, nodes))


def _first_difference(built: list[str], found: list[str]) -> int | None:
    if built == found:
        return None
    pairs = enumerate(zip(built, found, strict=False))
    return next((number for number, (one, other) in pairs if one != other), min(len(built), len(found)))


def _content(release: Release, node: str, reference: str) -> dict[str, Any]:
    return _ask(release, node, "image-identity", {"reference": reference})


def _ask(release: Release, node: str, verb: str, request: dict[str, Any]) -> dict[str, Any]:
    return run_on_node(
        release.nodes[node].connection, release.storage_folder, verb, request, timeout_seconds=_VERIFY_SECONDS
    )
