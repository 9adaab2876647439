"""Looks at a folder of weights as a whole: is it a checkpoint that can be served, and what is its manifest?"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.common.checkpoint_files import notes_of, problems_of
from runtime.common.errors import FilesError
from runtime.common.file_hashes import Tell
from runtime.common.weights_manifest import Manifest, make_manifest, root_of, scan


@dataclass(frozen=True)
class Examined:
    """A folder that holds a whole checkpoint.

    Attributes:
        manifest: what is in it.
        notes: what is odd and harmless, each a sentence for people.
    """

    manifest: Manifest
    notes: list[str]

    def as_data(self) -> dict[str, Any]:
        """Returns it as plain data, with the manifest's hash."""
        return {"manifest": self.manifest.as_data(), "hash": self.manifest.hash, "notes": self.notes}


def examine(request: dict[str, Any], folder: Path, memories: Path | None, tell: Tell) -> Examined:
    """Checks the files of a checkpoint against each other, then hashes them.

    Args:
        request: `layout`, `revision`, `requires`, `required_files` (see checkpoint_files).
        folder: what is looked at.
        memories: folder in which hashes are remembered; none reads every file again.
        tell: receives progress lines.

    Raises:
        FilesError: naming everything that is wrong.
    """
    layout, revision = request["layout"], request["revision"]
    found = scan(folder, layout, revision)
    root = folder / root_of(layout, revision)
    names = _names_below(root, folder, (*found.paths, *found.links))
    problems = problems_of(root, names, request["requires"], request["required_files"])
    if problems:
        raise FilesError("\n".join(problems))
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32]
    manifest = make_manifest(folder, layout, revision, memories and memories / f"{name}.json", tell)
    return Examined(manifest, [*found.notes, *notes_of(root, names)])


def _names_below(root: Path, folder: Path, paths: tuple[str, ...]) -> set[str]:
    prefix = "" if root == folder else f"{root.relative_to(folder).as_posix()}/"
    return {path.removeprefix(prefix) for path in paths if path.startswith(prefix)}
