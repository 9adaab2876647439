"""Real sources after a chain's edits, and single functions of them that run without their imports."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from runtime.build.edits import Edit, apply_edits
from spec.chain import Edit as DescribedEdit
from tools.patch_sources import ensure_sources, path_in_releases, stand_in
from tools.patch_table import Chain, read_chains

CHAINS = {chain.name: chain for chain in read_chains()}


def original(tree: str, release: str, file: str) -> str:
    """Returns a file of a release, unpatched."""
    return (ensure_sources_once()[tree, release] / path_in_releases(file)).read_text(encoding="utf-8")


@cache
def ensure_sources_once() -> dict[tuple[str, str], Path]:
    """Fetches all sources, once for the whole run."""
    return ensure_sources()


def as_built(edit: DescribedEdit) -> Edit:
    """Returns an edit as the image build gets it."""
    return Edit(**edit.model_dump())


@dataclass(frozen=True)
class Patched:
    """What a chain makes of the release that it is for, or that stands in for its base."""

    chain: Chain

    def folder(self, file: str) -> Path:
        """Returns the folder that stands in for the packages folder."""
        base = stand_in(self.chain.description.versions)
        tree = file.partition("/")[0]
        release = base.release(tree)
        assert release is not None, f"{self.chain.name} edits {file} and has no release to test it with"
        return ensure_sources_once()[tree, release]

    def edits(self) -> dict[str, list[tuple[str, Edit]]]:
        """Returns the edits of each file, with their steps, in the order of the chain."""
        found: dict[str, list[tuple[str, Edit]]] = {}
        for name, step in self.chain.steps.items():
            for edit in step.edits:
                found.setdefault(edit.file, []).append((name, as_built(edit)))
        return found

    def text(self, file: str) -> str:
        """Returns a file with all edits of the chain; real counts are checked on the way."""
        text = (self.folder(file) / path_in_releases(file)).read_text(encoding="utf-8")
        for step, edit in self.edits().get(file, []):
            text, (outcome,) = apply_edits(step, text, [edit])
            assert outcome == "applied", f"{step} in {file}"
        return text


def patched(chain: str) -> Patched:
    """Returns what a chain makes of its sources."""
    return Patched(CHAINS[chain])


def definition(text: str, name: str) -> ast.FunctionDef:
    """Returns a function or `Class.method` of a source."""
    node: ast.AST = ast.parse(text)
    for part in name.split("."):
        node = next(
            child
            for child in ast.walk(node)
            if isinstance(child, ast.ClassDef | ast.FunctionDef) and child.name == part
        )
    assert isinstance(node, ast.FunctionDef)
    return node


class _WithoutImportsOf(ast.NodeTransformer):
    """Removes imports inside a function of names that it is given."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if all((alias.asname or alias.name) in self.names for alias in node.names) else node


def function(text: str, name: str, names: Mapping[str, Any]) -> Any:
    """Returns a function or `Class.method` of a source, which sees nothing but these names."""
    found = _WithoutImportsOf(names).visit(definition(text, name))
    found.decorator_list = []
    module = ast.Module([ast.ImportFrom("__future__", [ast.alias("annotations")], 0), found], [])
    space = dict(names)
    exec(compile(ast.fix_missing_locations(module), name, "exec"), space)
    return space[found.name]


def expression(node: ast.AST, names: Mapping[str, Any]) -> Any:
    """Returns the value of an expression of a source, with these names."""
    assert isinstance(node, ast.expr)
    return eval(compile(ast.Expression(node), "expression", "eval"), dict(names))
