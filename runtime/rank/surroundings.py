"""What a rank finds around it in its container: identities, limits, caches, secrets."""

import hashlib
import json
import os
import resource
import shutil
import site
from collections.abc import Iterable, Mapping
from pathlib import Path

from runtime.build.libraries import nccl_libraries
from runtime.rank.request import Limits, RankRequest
from runtime.rank.status import Identity

RUNTIME_FOLDER = Path(__file__).resolve().parents[1]

# What an engine would tell somebody outside; that it asks nobody for files is the Release's (spec/weights.py).
SILENT = {"DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "VLLM_NO_USAGE_STATS": "1"}
_AUTOTUNE_FOLDER_VARIABLE = "VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR"
_AUTOTUNE_FOLDER = "flashinfer_autotune_cache"


def own_identity(request: RankRequest) -> Identity:
    """Returns what this rank and its peers must have in common."""
    return Identity(
        generation=request.generation,
        image=image_identity(request.record_folder),
        nccl=nccl_version(site.getsitepackages() + os.environ.get("PYTHONPATH", "").split(":")),
        arguments=request.shared_arguments,
        runtime=runtime_hash(RUNTIME_FOLDER),
    )


def image_identity(record_folder: Path) -> str:
    """Returns the identity that the node found for the image when it made this container."""
    try:
        return str(json.loads((record_folder / "image.json").read_text())["identity"])
    except FileNotFoundError:
        return "unknown"


def nccl_version(folders: Iterable[str]) -> str:
    """Returns the versions of all NCCL libraries that Python would load; `none` where there is none."""
    candidates = [Path(folder) / "nvidia" / "nccl" for folder in folders if folder]
    found = nccl_libraries(path for path in candidates if path.is_dir())
    return ", ".join(sorted({version or "unknown" for version in found.values()})) or "none"


def runtime_hash(folder: Path) -> str:
    """Returns the hash of every Python file of this runtime."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def limit_problems(limits: Limits) -> list[str]:
    """Returns which limits of this process are below what the engine needs."""
    found = []
    for what, number, needed in (
        ("open files", resource.RLIMIT_NOFILE, limits.open_files),
        ("locked memory", resource.RLIMIT_MEMLOCK, limits.locked_memory_bytes),
    ):
        given = resource.getrlimit(number)[0]
        if given != resource.RLIM_INFINITY and (needed == -1 or given < needed):
            found.append(f"limits: {what} {given}, needed {needed}: the Docker engine did not give what was asked for")
    shared = shutil.disk_usage("/dev/shm").total
    if shared < limits.shared_memory_bytes:
        found.append(
            f"limits: /dev/shm has {shared} bytes, needed {limits.shared_memory_bytes}: remount it on this node"
        )
    return found


def wipe_autotune_cache(environment: Mapping[str, str]) -> Path:
    """Empties FlashInfer's autotune cache and returns where it is.

    A kept one deadlocks the next start of vLLM before 0.33: rank 0 saves entries that the others then miss (seed 002).
    """
    default_root = Path(environment.get("HOME", "/root")) / ".cache" / "vllm"
    root = Path(environment.get("VLLM_CACHE_ROOT", default_root))
    folder = Path(environment.get(_AUTOTUNE_FOLDER_VARIABLE, root / _AUTOTUNE_FOLDER))
    if folder.is_dir():
        shutil.rmtree(folder)
    return folder


def secret_variables(folder: Path) -> dict[str, str]:
    """Returns what tells the engine its secrets; only the engine's own process gets it.

    vLLM takes its key from a variable and Hugging Face its token from a file; neither is in argv then.
    """
    found = {}
    if (folder / "api-key").is_file():
        found["VLLM_API_KEY"] = (folder / "api-key").read_text().strip()
    if (folder / "hf-token").is_file():
        found["HF_TOKEN_PATH"] = str(folder / "hf-token")
    return found
