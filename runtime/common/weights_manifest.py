"""The manifest of a folder of weights: every file with its size and SHA-256, every link with its target.

Two layouts are known: a flat folder, and the folder of one repository in the cache of Hugging Face
(`models--OWNER--NAME` with blobs, snapshots and refs), of which one snapshot and the blobs that it links to belong to
the manifest.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from runtime.common.errors import FilesError
from runtime.common.file_hashes import Tell, hash_files

Layout = Literal["flat", "huggingface"]

_UNFINISHED = ".incomplete"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ManifestFile:
    """A regular file: path relative to the folder, size in bytes, SHA-256."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a folder of weights holds.

    Attributes:
        layout: of the folder.
        revision: of the repository; only the snapshot of this revision belongs to it.
        files: sorted by path.
        links: target of each symbolic link by its path, relative to the link's own folder.
        texts: small files that are written anew instead of copied, by path: `refs/main`, which the hub's client only
            understands without a newline at its end, and which names this revision here.
    """

    layout: Layout
    revision: str
    files: tuple[ManifestFile, ...]
    links: dict[str, str]
    texts: dict[str, str]

    @property
    def root(self) -> str:
        """The folder that a rank is pointed to, relative to this one; empty for this one itself."""
        return root_of(self.layout, self.revision)

    @property
    def size_bytes(self) -> int:
        """All files together."""
        return sum(file.size_bytes for file in self.files)

    def content(self) -> dict[str, ManifestFile]:
        """Returns what a rank sees: path below `root` and the file behind it, links followed."""
        files = {file.path: file for file in self.files}
        seen = dict(files)
        for link in self.links:
            seen[link] = files[_joined(link, self.links[link])]
        prefix = f"{self.root}/" if self.root else ""
        return {path.removeprefix(prefix): seen[path] for path in sorted(seen) if path.startswith(prefix)}

    @property
    def hash(self) -> str:
        """The identity of the weights: the hash of what a rank sees, which is the same in both layouts."""
        content = [[path, file.size_bytes, file.sha256] for path, file in self.content().items()]
        return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()

    def as_data(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return {
            "layout": self.layout,
            "revision": self.revision,
            "files": [[file.path, file.size_bytes, file.sha256] for file in self.files],
            "links": self.links,
            "texts": self.texts,
        }

    @staticmethod
    def from_data(data: dict[str, Any]) -> "Manifest":
        """Reads what `as_data` gave; a path that leaves the folder is refused.

        Raises:
            FilesError: a path is absolute or leads out of the folder.
        """
        files = tuple(ManifestFile(*entry) for entry in data["files"])
        paths = {file.path for file in files}
        for path in (*paths, *data["links"], *data["texts"]):
            refuse_outside(path)
        for link, target in data["links"].items():
            if _joined(link, target) not in paths:
                raise FilesError(f"the manifest holds a link {link} to {target}, which is no file of it")
        return Manifest(data["layout"], data["revision"], files, dict(data["links"]), dict(data["texts"]))


@dataclass(frozen=True)
class Scan:
    """What was found in a folder before anything was hashed.

    Attributes:
        paths: of regular files.
        links: as in Manifest.
        notes: what is odd and harmless, each a sentence for people.
    """

    paths: tuple[str, ...]
    links: dict[str, str]
    notes: tuple[str, ...]


def root_of(layout: Layout, revision: str) -> str:
    """Returns the folder that a rank is pointed to, relative to the folder of the weights."""
    return f"snapshots/{revision}" if layout == "huggingface" else ""


def make_manifest(folder: Path, layout: Layout, revision: str, memory: Path | None, tell: Tell) -> Manifest:
    """Hashes what belongs to the weights in a folder.

    Args:
        folder: the flat folder, or `models--OWNER--NAME`.
        layout: of the folder.
        revision: of the repository.
        memory: file that remembers hashes; see file_hashes.
        tell: receives progress lines.

    Raises:
        FilesError: the folder is not there or not of this layout, a link leads nowhere or out of it, or a blob holds
            something else than its name says.
    """
    found = scan(folder, layout, revision)
    hashes = hash_files(folder, found.paths, memory, tell)
    files = tuple(ManifestFile(path, *hashes[path]) for path in sorted(found.paths))
    for file in files:
        _refuse_wrong_blob(folder, layout, file)
    texts = {"refs/main": revision} if layout == "huggingface" else {}
    return Manifest(layout, revision, files, dict(sorted(found.links.items())), texts)


def scan(folder: Path, layout: Layout, revision: str) -> Scan:
    """Looks at names and links only.

    Raises:
        FilesError: as make_manifest.
    """
    if not folder.is_dir():
        raise FilesError(f"{folder} does not exist, or is no folder")
    root = root_of(layout, revision)
    if layout == "huggingface":
        _refuse_absent_snapshot(folder, revision)
    regular, links = _walk(folder, root)
    targets = {_joined(link, target) for link, target in links.items()}
    names = [PurePosixPath(path).name for path in regular | targets]
    if not names:
        raise FilesError(f"{folder / root} is empty: weights are at least a config.json and one file of tensors")
    return Scan(tuple(sorted(regular | targets)), links, tuple(_notes(folder, layout, revision)))


def refuse_outside(path: str) -> None:
    """Raises FilesError if a path of a manifest would leave its folder."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise FilesError(f"the manifest holds the path {path!r}, which leads out of its folder; nothing was written")


def _walk(folder: Path, root: str) -> tuple[set[str], dict[str, str]]:
    """Returns regular files and links below the root; hidden folders are the bookkeeping of tools (.cache, .git)."""
    regular: set[str] = set()
    links: dict[str, str] = {}
    for entry in _entries(folder / root):
        path = Path(entry.path).relative_to(folder).as_posix()
        if entry.is_symlink():
            links[path] = _target_inside(folder, path)
        elif entry.is_file() and not entry.name.endswith(_UNFINISHED):
            regular.add(path)
    return regular, links


def _entries(folder: Path) -> "Iterator[os.DirEntry[str]]":
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                yield entry
            elif not entry.name.startswith("."):
                yield from _entries(Path(entry.path))


def _target_inside(folder: Path, path: str) -> str:
    """Returns a link's target, relative to the link's folder; what it leads to must be a file of the same folder."""
    link = folder / path
    written = link.readlink()
    inside = Path(os.path.realpath(folder))
    reached = Path(os.path.realpath(link))
    if not reached.exists():
        raise FilesError(
            f"{link} is a link to {written}, and there is nothing: a download was broken off, or a snapshot was copied "
            "without the blobs beside it. Run the download again, or copy the whole folder models--OWNER--NAME"
        )
    if inside not in reached.parents:
        raise FilesError(
            f"{link} leads to {reached}, out of {folder}: on a node it would lead nowhere. "
            + (
                f"Name the whole folder {folder.parent.parent} instead of one snapshot of it"
                if folder.parent.name == "snapshots"
                else "Put the file itself there"
            )
        )
    if not reached.is_file():
        raise FilesError(f"{link} is a link to a folder, which no checkpoint needs: put the folder itself there")
    return os.path.relpath(reached, link.parent.resolve())


def _refuse_absent_snapshot(folder: Path, revision: str) -> None:
    if (folder / "snapshots" / revision).is_dir():
        return
    snapshots = folder / "snapshots"
    there = sorted(path.name for path in snapshots.iterdir()) if snapshots.is_dir() else []
    raise FilesError(
        f"{folder} holds no snapshot {revision}; it has {', '.join(there) or 'none'}. Download that revision, or pin "
        "one of these in the catalogue"
    )


def _refuse_wrong_blob(folder: Path, layout: Layout, file: ManifestFile) -> None:
    """A blob that Hugging Face keeps in its large file store is named by its SHA-256."""
    path = PurePosixPath(file.path)
    is_named = layout == "huggingface" and path.parent.name == "blobs" and _SHA256.fullmatch(path.name)
    if is_named and path.name != file.sha256:
        raise FilesError(
            f"{folder / file.path} holds other bytes than its name says (its SHA-256 is {file.sha256}): it was "
            "damaged. Delete this blob and run the download again"
        )


def _notes(folder: Path, layout: Layout, revision: str) -> Iterator[str]:
    if layout == "flat":
        yield from (f"{path} is an unfinished download and is left out" for path in folder.rglob(f"*{_UNFINISHED}"))
        return
    yield from (f"{path} is an unfinished download" for path in (folder / "blobs").glob(f"*{_UNFINISHED}"))
    main = folder / "refs" / "main"
    text = main.read_text() if main.is_file() else None
    if text is not None and text != text.strip():
        yield (
            f"{main} ends with a newline: the client of Hugging Face would look for a snapshot of that very name and "
            "find nothing offline. The nodes get it without"
        )
    if text is not None and text.strip() != revision:
        yield f"{main} names {text.strip()}, the deployment pins {revision}: on the nodes it names the pinned one"


def _joined(link: str, target: str) -> str:
    return os.path.normpath(PurePosixPath(link).parent / target)
