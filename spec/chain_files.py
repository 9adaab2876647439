"""Reads the folders of image chains: patches/CHAIN/chain.yaml, STEP/step.yaml and the files that steps place."""

import hashlib
from pathlib import Path

from spec.chain import ChainDescription, FileContent, PatchChain, ReadStep, StepDescription, resolve_chain
from spec.errors import Problem, SpecificationError
from spec.yaml_files import parse, read_yaml

_CHUNK_BYTES = 1 << 20


def read_chain(folder: Path) -> PatchChain:
    """Reads a chain with all of its steps and resolves it.

    Args:
        folder: of the chain, inside the folder that also holds shared steps; not a link.

    Raises:
        SpecificationError: a file is absent or wrong, or the steps do not fit together.
    """
    folder = folder.resolve()
    shown = f"{_shown_folder(folder, folder.parent)}/chain.yaml"
    description = parse(ChainDescription, read_yaml(folder / "chain.yaml", shown), shown)
    steps = [
        read_step(_step_folder(folder, reference, shown, index), folder.parent)
        for index, reference in enumerate(description.steps)
    ]
    return resolve_chain(folder.name, shown, description, steps)


def read_step(folder: Path, patches: Path) -> ReadStep:
    """Reads one step and the content of the files that it places.

    Args:
        folder: of the step.
        patches: the folder that holds all chains, for messages.

    Raises:
        SpecificationError: its step.yaml is absent or wrong, or a file that it places is absent.
    """
    folder, patches = folder.resolve(), patches.resolve()
    shown = f"{_shown_folder(folder, patches)}/step.yaml"
    description = parse(StepDescription, read_yaml(folder / "step.yaml", shown), shown)
    contents = {
        file.source: _content(folder, file.source, shown, f"files/{index}/source")
        for index, file in enumerate(description.files)
    }
    return ReadStep(name=folder.name, shown=shown, description=description, contents=contents)


def _shown_folder(folder: Path, patches: Path) -> str:
    return f"{patches.name}/{folder.relative_to(patches).as_posix()}"


def _step_folder(chain: Path, reference: str, shown: str, index: int) -> Path:
    folder = (chain / reference).resolve()
    if not folder.is_relative_to(chain.parent) or not (folder / "step.yaml").is_file():
        known = sorted(path.parent for path in (*chain.glob("*/step.yaml"), *chain.parent.glob("steps/*/step.yaml")))
        names = ", ".join(
            path.name if path.parent == chain else f"../{path.relative_to(chain.parent)}" for path in known
        )
        raise SpecificationError(
            Problem(
                shown,
                f"steps/{index}",
                reference,
                f"must be a folder below {chain.parent.name}/ with a step.yaml in it",
                f"use one of: {names or 'none'}; or add {reference}/step.yaml",
            )
        )
    return folder


def _content(folder: Path, source: str, shown: str, key: str) -> FileContent:
    path = (folder / source).resolve()
    if not path.is_relative_to(folder) or not path.is_file():
        raise SpecificationError(
            Problem(shown, key, source, "must be a file in the step's folder", f"add {source} beside step.yaml")
        )
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return FileContent(path=str(path), sha256=digest.hexdigest(), size=path.stat().st_size)
