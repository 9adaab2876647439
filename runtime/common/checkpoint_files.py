"""Does a folder hold a whole checkpoint? Looks at names, at the index and at the header of each file of tensors.

A sum of all sizes does not see one shard that is too large (facts/seed-repos.md section 6, 35), so each file is held
against its own header, which says where its last tensor ends.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"
_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000
"""What the format allows."""

_KINDS = {
    "config": (("config.json",), "no engine can tell what the weights are"),
    "tokenizer": (
        ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "tiktoken.model"),
        "no text can be turned into tokens",
    ),
    "chat_template": (
        ("chat_template.jinja", "chat_template.json"),
        "the chat endpoint refuses every request (an engine flag `chat_template` may name another file)",
    ),
}
"""What a deployment can require: the names that satisfy it, and what happens without."""


def problems_of(root: Path, names: set[str], requires: list[str], required_files: list[str]) -> list[str]:
    """Returns what keeps the folder from being a whole checkpoint, a sentence each.

    Args:
        root: the folder that a rank is pointed to.
        names: paths below it.
        requires: of `config`, `tokenizer` and `chat_template`.
        required_files: further names that must be there.
    """
    found = absent_of(root, names, requires, required_files)
    read = {name: _header_or_problem(root / name) for name in sorted(names) if name.endswith(".safetensors")}
    found += [problem for problem in read.values() if isinstance(problem, str)]
    headers = {name: header for name, header in read.items() if not isinstance(header, str)}
    return [*found, *_size_problems(root, headers), *_index_problems(root, names, headers)]


def absent_of(root: Path, names: set[str], requires: list[str], required_files: list[str]) -> list[str]:
    """Returns what a deployment requires and the folder lacks, a sentence each; arguments as for problems_of."""
    found = [text for kind in requires if (text := _absent_kind(root, names, kind))]
    return found + [
        f"{root / name} is not there, and the stack file names it" for name in required_files if name not in names
    ]


def notes_of(root: Path, names: set[str]) -> list[str]:
    """Returns what is odd and harmless: files of tensors that the index does not name, which no engine loads."""
    if INDEX not in names:
        return []
    indexed = set(_weight_map(root).values())
    extra = sorted(name for name in names if name.endswith(".safetensors") and name not in indexed)
    return [f"{root / name} is extra: {INDEX} does not name it, and it takes space on every node" for name in extra]


def read_header(path: Path) -> dict[str, Any]:
    """Returns the header of a file in the safetensors format: each tensor with its place.

    Raises:
        ValueError: the file is cut off or is something else.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        text = file.read(length) if length <= _MOST_HEADER_BYTES else b""
    if len(text) != length or not length:
        raise ValueError(f"{path} has no whole header of the safetensors format: it is cut off or another kind of file")
    try:
        header = json.loads(text)
    except ValueError:
        raise ValueError(f"{path} starts like a safetensors file and its header is not readable: damaged") from None
    header.pop("__metadata__", None)
    return header


def _header_or_problem(path: Path) -> dict[str, Any] | str:
    try:
        return read_header(path)
    except ValueError as error:
        return str(error)


def _size_problems(root: Path, headers: dict[str, dict[str, Any]]) -> Iterator[str]:
    for name, header in headers.items():
        path = root / name
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        wanted = _LENGTH_BYTES + length + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
        found = path.stat().st_size
        if found > wanted:
            yield (
                f"{path} is oversized: its tensors end at byte {wanted} and it has {found}, {found - wanted} too many. "
                "Two downloads wrote into it: delete it and download it again"
            )
        if found < wanted:
            yield f"{path} is cut off: its tensors end at byte {wanted} and it has {found}. Download it again"


def _index_problems(root: Path, names: set[str], headers: dict[str, dict[str, Any]]) -> Iterator[str]:
    if INDEX not in names:
        if not any(name.endswith((".safetensors", ".bin", ".gguf", ".pt")) for name in names):
            yield f"{root} holds no file of tensors at all: only the configuration was downloaded"
        return
    try:
        placed = _weight_map(root)
    except (ValueError, KeyError, TypeError):
        yield f"{root / INDEX} is not readable as an index: download it again"
        return
    by_file: dict[str, set[str]] = defaultdict(set)
    for tensor, name in placed.items():
        by_file[name].add(tensor)
    for name in sorted(by_file):
        if name not in names:
            yield f"{root / name} is missing: {INDEX} places {len(by_file[name])} tensors in it. Download it again"
        elif name in headers:
            yield from _wrong_file(root, name, by_file[name], set(headers[name]), placed)


def _wrong_file(root: Path, name: str, wanted: set[str], held: set[str], placed: dict[str, str]) -> Iterator[str]:
    if absent := sorted(wanted - held):
        yield (
            f"{root / name} is the wrong file: {INDEX} places {absent[0]} (and {len(absent) - 1} more) in it, and it "
            "is not there. Files of two revisions were mixed: download both again"
        )
    twice = sorted(tensor for tensor in held - wanted if tensor in placed)
    if twice:
        yield (
            f"{root / name} holds {twice[0]} (and {len(twice) - 1} more), which {INDEX} places in "
            f"{placed[twice[0]]}: the index points at the wrong file, or the tensor is there twice"
        )


def _weight_map(root: Path) -> dict[str, str]:
    return dict(json.loads((root / INDEX).read_text())["weight_map"])


def _absent_kind(root: Path, names: set[str], kind: str) -> str | None:
    satisfying, consequence = _KINDS[kind]
    if any(name in names for name in satisfying):
        return None
    if kind == "chat_template" and _tokenizer_has_template(root, names):
        return None
    return f"{root} has none of {', '.join(satisfying)}: {consequence}"


def _tokenizer_has_template(root: Path, names: set[str]) -> bool:
    if "tokenizer_config.json" not in names:
        return False
    try:
        return "chat_template" in json.loads((root / "tokenizer_config.json").read_text())
    except ValueError:
        return False
