"""The manifest of a folder of weights: every file with its size and SHA-256."""

import hashlib
import json
from pathlib import Path

CHUNK_BYTES = 1 << 20


def manifest_of(folder: Path) -> list[dict[str, object]]:
    """Hashes every regular file below the folder; paths are relative and sorted."""
    return [
        {"path": path.relative_to(folder).as_posix(), "size": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]


def manifest_hash(manifest: list[dict[str, object]]) -> str:
    """Returns the one hash of a manifest, the identity of the weights."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
