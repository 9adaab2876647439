"""Small folders that look like checkpoints: real safetensors headers, an index, a tokenizer, in both layouts."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

REVISION = "0123456789abcdef0123456789abcdef01234567"
OTHER_REVISION = "fedcba9876543210fedcba9876543210fedcba98"
REPOSITORY = "owner/tiny"


def tensors_file(tensors: Mapping[str, int], fill: bytes = b"\x01") -> bytes:
    """Returns a safetensors file with tensors of so many bytes each."""
    header, end = {}, 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + fill * end


def checkpoint(shards: int = 2, bytes_each: int = 1000) -> dict[str, bytes]:
    """Returns the files of a whole checkpoint by name."""
    names = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    placed = {f"layers.{number}.weight": name for number, name in enumerate(names)}
    files = {
        name: tensors_file({tensor: bytes_each}, bytes([number + 1]))
        for number, (tensor, name) in enumerate(placed.items())
    }
    return {
        **files,
        "model.safetensors.index.json": json.dumps({"metadata": {}, "weight_map": placed}).encode(),
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "chat_template.jinja": b"{{ messages }}",
    }


def write_flat(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Writes a flat folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def write_hub(
    cache: Path,
    files: Mapping[str, bytes],
    revision: str = REVISION,
    main: str | None = None,
    repository: str = REPOSITORY,
) -> Path:
    """Writes the folder of a repository as the client of Hugging Face does: large files are named by their SHA-256.

    Args:
        cache: the client's cache.
        files: of the snapshot.
        revision: of the snapshot.
        main: what `refs/main` says; the revision if absent.
        repository: whose it is.
    """
    folder = cache / f"models--{repository.replace('/', '--')}"
    snapshot = folder / "snapshots" / revision
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(revision if main is None else main)
    for name, content in files.items():
        large = name.endswith(".safetensors")
        blob = hashlib.sha256(content).hexdigest() if large else git_blob_hash(content)
        (folder / "blobs" / blob).write_bytes(content)
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(folder / "blobs" / blob, link.parent))
    return folder


def git_blob_hash(content: bytes) -> str:
    """Returns the name that git gives to a small file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
