"""Everything that a stack of the lab needs on this machine, made in order; what is there already costs nothing."""

from dataclasses import dataclass
from pathlib import Path

from lab.commands import Report
from lab.errors import LabError
from lab.images import build_base, build_root
from lab.model import ensure_model
from lab.vllm_tree import ensure_vllm_tree
from spec.chain import ChainDescription
from spec.model import Model

_PYTHON = "3.11"  # bookworm's


@dataclass(frozen=True)
class Parts:
    """What was made.

    Attributes:
        root: archive of the base without vLLM, whose Python runs everything.
        tree: vLLM for processors with all that it imports.
    """

    root: Path
    tree: Path


def make_parts(chain: ChainDescription, name: str, model: Model, report: Report) -> Parts:
    """Makes the base of the lab's image chain, vLLM's tree and a model.

    Args:
        chain: what the chain.yaml says.
        name: of the model in the catalogue.
        model: its entry.
        report: receives progress lines.

    Raises:
        LabError: a part could not be made.
    """
    recipe = chain.debootstrap
    if recipe is None or recipe.vllm is None:
        raise LabError(
            "make the lab's image", "its chain has no base with vLLM made by debootstrap", "See patches/lab."
        )
    root = build_root(recipe, report)
    tree = ensure_vllm_tree(recipe.vllm, _PYTHON, root, report)
    build_base(chain, tree, report)
    ensure_model(name, model, tree, root, report)
    return Parts(root, tree)
