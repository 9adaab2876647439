"""What shared libraries say about themselves, read from their bytes: nothing is loaded."""

import mmap
import os
import re
from collections.abc import Iterable
from pathlib import Path

# `NCCL version 2.30.7+cuda13.3` (facts/vllm-patches.md section 3, read in the aarch64 wheel).
_NCCL_VERSION = re.compile(rb"NCCL version (\d+\.\d+\.\d+)")

# What torch.cuda.get_arch_list() splits: the macro CUDA_ARCH_FLAGS as one text, in torch/csrc/cuda/Module.cpp
# (THCPModule_getArchFlags), which is part of libtorch_python.so.
_ARCHITECTURE = rb"(?:sm|compute)_\d+[af]?"
_ARCHITECTURES = re.compile(rb"(?<=\x00)(" + _ARCHITECTURE + rb"(?: " + _ARCHITECTURE + rb")*)(?=\x00)")
_TORCH_LIBRARIES = ("torch/lib/libtorch_python.so", "torch/lib/libtorch_cuda.so")


NCCL_LIBRARY = "libnccl.so"


def nccl_libraries(folders: Iterable[Path]) -> dict[str, str | None]:
    """Finds every real libnccl below the folders.

    Returns:
        For each file its version, none where it does not say one. Links are followed to the file that they name.
    """
    found: dict[str, str | None] = {}
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in names:
                if name.startswith(NCCL_LIBRARY):
                    real = (Path(parent) / name).resolve()
                    if real.is_file() and str(real) not in found:
                        found[str(real)] = nccl_version(real)
    return dict(sorted(found.items()))


def nccl_version(library: Path) -> str | None:
    """Returns the version that a libnccl prints when it starts, none if there is no such text in it."""
    found = _searched(library, _NCCL_VERSION)
    return found[0].decode() if found else None


def torch_architectures(packages: Path) -> list[str] | None:
    """Returns the GPU architectures that torch was built for, none where its files do not tell."""
    for name in _TORCH_LIBRARIES:
        lists = _searched(packages / name, _ARCHITECTURES) if (packages / name).is_file() else []
        if lists:
            return max(lists, key=len).decode().split()
    return None


def covers(architectures: Iterable[str], capability: str) -> bool:
    """Tells whether code for one of the architectures runs on a capability such as 12.0.

    A plain or family (`f`) target runs on its own capability and on later ones of the same major number, an `a` target
    on exactly its own (CUDA programming guide, compute capabilities). PTX of an earlier major number would be compiled
    for minutes at each start and does not count.
    """
    major, minor = (int(part) for part in capability.split("."))
    return any(_runs_on(name, major, minor) for name in architectures)


def _runs_on(architecture: str, major: int, minor: int) -> bool:
    matched = re.fullmatch(r"(?:sm|compute)_(\d+)(\d)([af]?)", architecture)
    if matched is None or int(matched[1]) != major:
        return False
    return int(matched[2]) == minor if matched[3] == "a" else int(matched[2]) <= minor


def _searched(library: Path, pattern: re.Pattern[bytes]) -> list[bytes]:
    """Returns the first group of every match in a file."""
    if library.stat().st_size == 0:
        return []
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return [bytes(found[1]) for found in pattern.finditer(content)]
