"""The folder runtime/ as one package with a content hash, ready to be put on a node."""

import hashlib
import io
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

RUNTIME_FOLDER = Path(__file__).resolve().parent.parent / "runtime"


@dataclass(frozen=True)
class RuntimePackage:
    """What is copied to nodes.

    Attributes:
        hash: of every file's path and content, 64 hexadecimal digits.
        archive: the same files as a tar.
    """

    hash: str
    archive: bytes


@cache
def runtime_package(folder: Path = RUNTIME_FOLDER) -> RuntimePackage:
    """Packs the Python files of runtime/; the same files give the same bytes."""
    digest = hashlib.sha256()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(folder.rglob("*.py")):
            name = f"runtime/{path.relative_to(folder).as_posix()}"
            content = path.read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return RuntimePackage(digest.hexdigest(), buffer.getvalue())
