"""The images of the virtual fabric: the one that nodes are made of, and those that ranks run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lab import places
from lab.archives import write_docker_archive, write_layer
from lab.commands import Report
from lab.docker_engine import DockerEngine, docker_architecture
from lab.errors import LabError
from lab.root_folders import building_folder, make_root
from spec.base import content_hash
from spec.image import Image

_NODE_RECIPE_VERSION = 1
_NODE_PACKAGES = (
    "ca-certificates",
    "docker.io",
    "iproute2",
    "iptables",
    "openssh-server",
    "procps",
    "python3",
    "rsync",
    "zstd",
)
# Since trixie the client is a package of its own.
_SUITE_PACKAGES: dict[str, tuple[str, ...]] = {"bookworm": (), "trixie": ("docker-cli",)}


@dataclass(frozen=True)
class NodeSystem:
    """What a virtual node is inside.

    Attributes:
        suite: Debian release: bookworm brings Docker 20.10, trixie 26.1.
        image_store: where its Docker engine keeps images; Docker has the containerd store since 24.
    """

    suite: Literal["bookworm", "trixie"] = "bookworm"
    image_store: Literal["classic", "containerd"] = "classic"

    def __post_init__(self) -> None:
        if self.suite == "bookworm" and self.image_store == "containerd":
            raise LabError("make a virtual node", "Docker 20.10 has no containerd image store", "Choose suite trixie.")


def build_rank_image(image: Image, report: Report) -> Path:
    """Makes the archive of an image that ranks run, unless it is there.

    Args:
        image: its entry in the catalogue.
        report: receives progress lines.

    Returns:
        The archive, as `docker load` takes it.

    Raises:
        LabError: not root, debootstrap or apt failed, or the image is not made that way.
    """
    archive = places.rank_images_folder() / f"{image.recipe_hash}.tar"
    recipe = image.debootstrap
    if recipe is None:
        raise LabError("make an image", "its entry has no recipe for debootstrap", "Use one that has, such as lab.")
    return _build_if_absent(recipe.suite, recipe.packages, image.reference, archive, report)


def node_image(engine: DockerEngine, suite: str, report: Report) -> str:
    """Makes sure that an engine has the image of virtual nodes of a Debian release.

    Returns:
        The image's reference.
    """
    packages = sorted((*_NODE_PACKAGES, *_SUITE_PACKAGES[suite]))
    identity = content_hash([suite, packages, _NODE_RECIPE_VERSION, docker_architecture()])[:16]
    reference = f"gb10-serving/lab-node:{identity}"
    if not engine.has_image(reference):
        archive = places.lab_cache_folder() / f"node-{identity}.tar"
        _build_if_absent(suite, packages, reference, archive, report)
        report("load the image of virtual nodes")
        engine.docker("load", "--quiet", "--input", str(archive), what="load the image of virtual nodes")
    return reference


def _build_if_absent(suite: str, packages: Sequence[str], reference: str, archive: Path, report: Report) -> Path:
    if archive.exists():
        return archive
    with building_folder() as folder:
        # Another process may have made it while this one waited for the folder.
        if not archive.exists():
            report(f"make the image {reference}")
            _build(suite, packages, reference, archive, folder, report)
    return archive


def _build(suite: str, packages: Sequence[str], reference: str, archive: Path, folder: Path, report: Report) -> None:
    root = make_root(suite, packages, folder, report)
    report("write the archive")
    layer, unfinished = folder / "layer.tar", folder / "archive.tar"
    diff_id = write_layer(root.path, layer, root.made_after)
    write_docker_archive(layer, diff_id, reference, docker_architecture(), unfinished)
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished.rename(archive)
