"""The images of the virtual fabric: the one that nodes are made of, and those that ranks run."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lab import places
from lab.archives import write_layer
from lab.commands import Report
from lab.docker_engine import DockerEngine, docker_architecture
from lab.errors import LabError
from lab.root_folders import building_folder, make_root
from ops.docker_archive import extend_docker_archive, write_docker_archive
from spec.base import content_hash
from spec.chain import ChainDescription, Debootstrap

# Where bookworm's Python finds what its distribution did not install, and where ranks mount vLLM's tree.
_PACKAGES = "usr/local/lib/python3.11/dist-packages"
_TREE_IN_RANKS = Path("/opt/vllm")

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


def build_root(recipe: Debootstrap, report: Report) -> Path:
    """Makes the archive of a base without vLLM, unless it is there: its Python makes everything else.

    Args:
        recipe: of a base.
        report: receives progress lines.

    Returns:
        The archive, as `docker load` takes it; it has one layer.

    Raises:
        LabError: not root, or debootstrap or apt failed.
    """
    bare = recipe.model_copy(update={"vllm": None})
    archive = places.base_archive(bare.identity)
    return _build_if_absent(bare.suite, bare.packages, bare.reference, archive, report)


def build_base(chain: ChainDescription, tree: Path, report: Report) -> Path:
    """Makes the archive of the base that a chain starts from, unless it is there: Debian and vLLM's Python files.

    vLLM's compiled libraries stay in the tree that ranks mount, 400 MB that no patch touches: links lead there.

    Args:
        chain: what its chain.yaml says.
        tree: vLLM's tree (lab/vllm_tree.py).
        report: receives progress lines.

    Returns:
        The archive, as `docker load` takes it.

    Raises:
        LabError: the chain has another base or another packages folder than those made here, or making it failed.
    """
    recipe = chain.debootstrap
    if recipe is None or recipe.vllm is None or chain.packages_folder != f"/{_PACKAGES}":
        raise LabError(
            "make the base of an image chain",
            f"the lab makes one with `debootstrap`, `vllm` in it and `packages_folder: /{_PACKAGES}`",
            "Correct patches/lab/chain.yaml.",
        )
    archive = places.base_archive(recipe.identity)
    if archive.exists():
        return archive
    root = build_root(recipe, report)
    with building_folder() as folder:
        if not archive.exists():
            report(f"make the image {recipe.reference}: Debian with vLLM {recipe.vllm}")
            _add_vllm(root, recipe, tree, archive, folder)
    return archive


def _add_vllm(root: Path, recipe: Debootstrap, tree: Path, archive: Path, folder: Path) -> None:
    packages, layer, unfinished = folder / "vllm" / _PACKAGES, folder / "layer.tar", folder / "archive.tar"
    packages.mkdir(parents=True)
    shutil.copytree(tree / "vllm", packages / "vllm", ignore=shutil.ignore_patterns("*.so"))
    for library in (tree / "vllm").rglob("*.so"):
        place = library.relative_to(tree)
        (packages / place).symlink_to(_TREE_IN_RANKS / place)
    information = f"vllm-{recipe.vllm}+cpu.dist-info"
    shutil.copytree(tree / information, packages / information)
    # Compiled files refer to the times of their sources, so these stay as they are.
    diff_id = write_layer(folder / "vllm", layer, made_after=float("inf"))
    extend_docker_archive(root, layer, diff_id, recipe.reference, unfinished)
    unfinished.rename(archive)


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
