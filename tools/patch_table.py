"""Prints the table of every fix and every release: applied, upstream, not needed, with counts, all of it measured.

`python -m tools.patch_table` prints docs/patches.md; with `--write` it writes the file.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ops.places import PROJECT
from runtime.build.texts import check_assertion, read_text
from spec.chain import ChainDescription, Edit, StepDescription
from spec.chain_files import read_step
from spec.yaml_files import read_yaml
from tools.patch_sources import PATCHES, ensure_sources, path_in_releases, releases, stand_in

TABLE = PROJECT / "docs" / "patches.md"
# A chain without a digest is refused everywhere else; what it patches can be tested all the same.
_ANY_DIGEST = "sha256:" + "0" * 64
_OPEN = "open: "
_NAMES = {"vllm": "vLLM", "flashinfer": "FlashInfer", "sglang": "SGLang"}
_HEAD = """\
# Patches and releases

Made by `python -m tools.patch_table --write` from patches/ and the real sources that patches/sources.yaml pins; a test
compares it. Each cell is measured: the number is how often the anchor stands in the release, of how often it must.

- **applied**: a chain whose base is this release, or that this release stands in for, has the step. (On the image of
  the release day the chain with the drafter stops before: that image has no drafter to patch for, which 0.30.0 has.)
- **fits**: the edit would apply and compile, and no chain on this release has it.
- **upstream**: the assertions of the step that stands in its place hold.
- **not needed**, **open**: see the note.

Stand-ins, where a base cannot be had here: vLLM 0.30.0 and FlashInfer 0.6.18 for the image of GLM's release day, vLLM
0.31.0 and FlashInfer 0.7.0.post1 for the second source's nightly, vLLM 0.29.0 for vLLM's image of Qwen's release day,
SGLang 0.5.20 for SGLang's of that day.

Two things of the sources are no edits here: the MessageQueue patch of the third source (P12), for which `VLLM_HOST_IP`
is the cure, and what installs packages or makes links: FlashInfer's nightly, NCCL, the CUTLASS DSL, RDMA's tools and
nvrtc's header, which nothing here can try on the bases.
"""


class TableError(Exception):
    """Raised when patches/fixes.yaml claims something that the sources do not show."""


@dataclass(frozen=True)
class Chain:
    """A chain as far as its edits go.

    Attributes:
        name: of its folder.
        description: what its chain.yaml says; a digest that is missing is made up.
        steps: by name, in order.
    """

    name: str
    description: ChainDescription
    steps: dict[str, StepDescription]

    @property
    def is_pinned(self) -> bool:
        """Whether its base is known by content."""
        return self.description.base is None or self.description.base.digest != _ANY_DIGEST


def read_chains() -> list[Chain]:
    """Reads all chains, also those that wait for their digest."""
    return [_read_chain(file.parent) for file in sorted(PATCHES.glob("*/chain.yaml"))]


def _read_chain(folder: Path) -> Chain:
    written = read_yaml(folder / "chain.yaml", f"patches/{folder.name}/chain.yaml")
    if "base" in written:
        written["base"] = {"digest": _ANY_DIGEST} | written["base"]
    description = ChainDescription.model_validate(written)
    steps = [read_step(folder / step, PATCHES) for step in description.steps]
    return Chain(folder.name, description, {step.name: step.description for step in steps})


class Measured:
    """The sources, and what the chains do with them."""

    def __init__(self) -> None:
        self.sources = ensure_sources()

    @cached_property
    def steps(self) -> dict[str, StepDescription]:
        """All steps by name."""
        folders = (file.parent for file in sorted(PATCHES.glob("**/step.yaml")))
        return {folder.name: read_step(folder, PATCHES).description for folder in folders}

    @cached_property
    def used(self) -> set[tuple[str, str, str]]:
        """Tree, release and step, for all chains."""
        found: set[tuple[str, str, str]] = set()
        for chain in read_chains():
            base = stand_in(chain.description.versions)
            for tree in _NAMES:
                found |= {(tree, release, step) for step in chain.steps if (release := base.release(tree))}
        return found

    def count(self, edit: Edit, tree: str, release: str) -> int | None:
        """Returns how often an edit's anchor stands in a release; none where the file is not there."""
        text = read_text(self.sources[tree, release] / path_in_releases(edit.file))
        return None if text is None else text.count(edit.anchor)

    def is_upstream(self, step: str, tree: str, release: str) -> bool:
        """Tells whether all assertions of a step hold in a release."""
        written = [assertion.model_dump(exclude_none=True) for assertion in self.steps[step].asserts]
        return all(check_assertion(one, self.sources[tree, release]).outcome == "passed" for one in written)


def table() -> str:
    """Returns the whole of docs/patches.md.

    Raises:
        TableError: a claim of patches/fixes.yaml is not so, or a step's edit has no row.
    """
    fixes = read_yaml(PATCHES / "fixes.yaml", "patches/fixes.yaml")
    measured = Measured()
    _require_every_edit(fixes, measured)
    return "\n".join([_HEAD, *(line for tree in fixes for line in _section(tree, fixes[tree], measured))])


def _require_every_edit(fixes: dict[str, Any], measured: Measured) -> None:
    named = {edit for rows in fixes.values() for row in rows for edit in row["edits"]}
    there = {f"{name}/{place}" for name, step in measured.steps.items() for place in range(len(step.edits))}
    if there != named:
        raise TableError(f"patches/fixes.yaml: no row has {sorted(there - named)}, no step {sorted(named - there)}")


def _section(tree: str, rows: list[dict[str, Any]], measured: Measured) -> Iterator[str]:
    columns, notes = releases(tree), dict[str, int]()
    yield f"## {_NAMES[tree]}\n"
    yield f"| fix | step | {' | '.join(columns)} |"
    yield f"|---|---|{'---|' * len(columns)}"
    for row in rows:
        cells = [_cell(row, tree, release, measured, notes) for release in columns]
        steps = dict.fromkeys(
            [*(edit.rpartition("/")[0] for edit in row["edits"]), *filter(None, [row.get("upstream")])]
        )
        yield f"| {row['fix']} | {', '.join(steps)} | {' | '.join(cells)} |"
    yield ""
    yield from (f"{number}. {note}" for note, number in notes.items())
    yield ""


def _cell(row: dict[str, Any], tree: str, release: str, measured: Measured, notes: dict[str, int]) -> str:
    counts = list(_counts(row, tree, release, measured))
    fitting = [(step, edit) for step, edit, found in counts if found == edit.count]
    shown = f"{fitting[0][1].count}/{fitting[0][1].count}" if fitting else ""
    if any((tree, release, step) in measured.used for step, _ in fitting):
        return f"applied {shown}"
    if "upstream" in row and measured.is_upstream(row["upstream"], tree, release):
        return "upstream"
    if reason := row.get("reasons", {}).get(release):
        number = notes.setdefault(reason.removeprefix(_OPEN), len(notes) + 1)
        return f"{'open' if reason.startswith(_OPEN) else 'not needed'} ({number})"
    if fitting:
        return f"fits {shown}"
    found = {f"{step}: {edit.file}": count for step, edit, count in counts}
    raise TableError(f"{row['fix']}, {_NAMES[tree]} {release}: not upstream, no reason, and no edit fits: {found}")


def _counts(row: dict[str, Any], tree: str, release: str, measured: Measured) -> Iterator[tuple[str, Edit, int | None]]:
    for name in row["edits"]:
        step, _, place = name.rpartition("/")
        edit = measured.steps[step].edits[int(place)]
        yield step, edit, measured.count(edit, tree, release)


def main() -> None:
    """Prints or writes the table."""
    if sys.argv[1:] == ["--write"]:
        TABLE.write_text(table(), encoding="utf-8")
    else:
        print(table(), end="")


if __name__ == "__main__":
    main()
