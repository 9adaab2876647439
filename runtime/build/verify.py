"""Verifies an image from inside: packages, libraries, patches, entrypoint; nothing of the image is imported.

The rules and where they come from: facts/vllm-patches.md section 3, "Import-free checks inside the image".
"""

import base64
import csv
import hashlib
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

from runtime.build.checks import Check, failed, passed
from runtime.build.debian import check_debian
from runtime.build.libraries import covers, nccl_libraries, torch_architectures
from runtime.build.links import check_link
from runtime.build.packages import Distribution, installed, same_version
from runtime.build.texts import check_assertion, check_edit

# Kernels compiled ahead, and those compiled on the builder: either hides a patched header (facts/vllm-patches.md P5).
FORBIDDEN_PACKAGES = ("flashinfer-jit-cache",)
_KERNEL_CACHES = ("root/.cache/flashinfer",)

_CUTLASS_PREFIX = "nvidia-cutlass-dsl"
_CUTLASS_LAST = "nvidia-cutlass-dsl-libs-cu"
NCCL_PREFIX = "nvidia-nccl-cu"
_SYSTEM_LIBRARIES = ("usr/lib", "usr/local/lib", "usr/local/cuda/lib64", "opt")
_SHOWN_PREFIXES = (
    "vllm",
    "flashinfer",
    "torch",
    "triton",
    "nvidia-nccl",
    "nvidia-cutlass-dsl",
    "sglang",
    "transformers",
)
_ARCHITECTURES = {"aarch64": "arm64", "arm64": "arm64", "x86_64": "amd64", "amd64": "amd64"}


def verify(request: dict[str, Any], root: Path = Path("/")) -> dict[str, Any]:
    """Checks everything that the request names, and what must hold in any image.

    Args:
        request: every key may be missing. packages_folder (else the one on sys.path that has vllm), versions by
            package name, absent (names), capability (such as 12.0), edits and asserts (runtime/build/texts.py), links
            and debian (as in a step), entrypoint and architecture as {expected, found}; found is what Docker says,
            where the caller knows it.
        root: of the image.

    Returns:
        ok, the packages that matter with their versions, and every check.
    """
    packages = _packages_folder(request, root)
    found = installed(packages)
    checks = [
        *_folder(packages),
        *check_versions(request.get("versions", {}), found),
        *check_forbidden((*FORBIDDEN_PACKAGES, *request.get("absent", ())), packages, found),
        *_doubled(found),
        *check_nccl(request.get("versions", {}), packages, found, root),
        *_cutlass(packages, found),
        *_kernel_caches(root),
        *_torch(request.get("capability"), packages),
        *(check_edit(edit, packages, root) for edit in request.get("edits", ())),
        *(check_assertion(assertion, packages, root) for assertion in request.get("asserts", ())),
        *(check_link(link, root) for link in request.get("links", ())),
        *check_debian(request.get("debian", []), root),
        *_entrypoint(request.get("entrypoint")),
        *_architecture(request.get("architecture")),
    ]
    return {
        "ok": all(check.outcome != "failed" for check in checks),
        "packages_folder": str(packages),
        "packages": {
            name: [distribution.version for distribution in distributions]
            for name, distributions in sorted(found.items())
            if name.startswith(_SHOWN_PREFIXES)
        },
        "checks": [check.as_json() for check in checks],
    }


def check_versions(expected: dict[str, str], found: dict[str, list[Distribution]]) -> list[Check]:
    """Compares packages with the versions that the chain names."""
    return [_version(name, version, found.get(name, [])) for name, version in sorted(expected.items())]


def check_forbidden(names: tuple[str, ...], packages: Path, found: dict[str, list[Distribution]]) -> list[Check]:
    """Makes sure that packages are gone; those that no image may have also with their folder, which is theirs alone."""
    checks: list[Check] = []
    for name in dict.fromkeys(names):
        folder = packages / name.replace("-", "_")
        left = name in FORBIDDEN_PACKAGES and folder.is_dir()
        seen = [*(distribution.folder for distribution in found.get(name, [])), *([folder.name] if left else [])]
        checks.append(
            failed(name, seen, "not installed", f"add a step with packages: {{remove: [{name}]}}")
            if seen
            else passed(name, "not installed")
        )
    return checks


def check_nccl(
    expected: dict[str, str], packages: Path, found: dict[str, list[Distribution]], root: Path = Path("/")
) -> list[Check]:
    """Compares the real libnccl, of which there must be one among the packages, with the version of its package.

    A copy of the distribution (vLLM's own images install libnccl2 for its headers) is reported but does not fail: torch
    loads its own first, and later loads of the same name get that one.
    """
    names = {name: version for name, version in expected.items() if name.startswith(NCCL_PREFIX)}
    installed_names = {name: items[0].version for name, items in found.items() if name.startswith(NCCL_PREFIX)}
    own = nccl_libraries([packages])
    checks = [
        Check(library, "noted", f"NCCL {version} of the distribution; torch loads the one of its package")
        for library, version in nccl_libraries(root / folder for folder in _SYSTEM_LIBRARIES).items()
        if library not in own
    ]
    for name, version in (installed_names | names).items():
        checks.append(_nccl(name, version, own))
    if not checks:
        checks.append(Check("NCCL", "noted", "no package of it and no libnccl"))
    return checks


def _nccl(name: str, version: str, own: dict[str, str | None]) -> Check:
    subject = f"libnccl of {name}"
    if len(own) != 1:
        return failed(subject, own or "no libnccl.so", "one libnccl.so", f"reinstall {name}=={version} in a step")
    (library, real), *_ = own.items()
    if real is None:
        return Check(subject, "unknown", f"{library} does not say its version", version)
    if real != ".".join(version.split(".")[:3]):
        return failed(
            subject,
            f"{library} says {real}",
            version,
            f"a package pulled another NCCL in: install {name}=={version} again in the step that did it",
        )
    return passed(subject, real)


def _packages_folder(request: dict[str, Any], root: Path) -> Path:
    named = request.get("packages_folder")
    if named is not None:
        return root / named.lstrip("/")
    candidates = [Path(entry) for entry in sys.path if entry and Path(entry).is_dir()]
    return next(
        (folder for folder in candidates if (folder / "vllm").is_dir()),
        next((folder for folder in candidates if any(folder.glob("*.dist-info"))), Path(sys.prefix)),
    )


def _folder(packages: Path) -> list[Check]:
    """Fails for a folder without packages: nothing else would be seen to be wrong in it."""
    if any(packages.glob("*.dist-info")):
        return []
    return [
        failed("packages folder", f"no packages in {packages}", "a folder with packages", "correct packages_folder")
    ]


def _version(name: str, expected: str, distributions: list[Distribution]) -> Check:
    if not distributions:
        return failed(name, "not installed", expected, f"install {name}=={expected} in a step")
    versions = [distribution.version for distribution in distributions]
    if not all(same_version(version, expected) for version in versions):
        return failed(
            name,
            ", ".join(versions),
            expected,
            f"a step or the base changed it: install {name}=={expected} in that step, or correct the chain's versions",
        )
    return passed(name, versions[0])


def _doubled(found: dict[str, list[Distribution]]) -> list[Check]:
    doubled = {
        name: [distribution.folder for distribution in distributions]
        for name, distributions in found.items()
        if len(distributions) > 1
    }
    if not doubled:
        return [passed("metadata of packages", f"{len(found)} packages, each once")]
    return [
        failed(name, folders, "one metadata folder", f"uninstall {name} until pip finds none, then install it once")
        for name, folders in doubled.items()
    ]


def _cutlass(packages: Path, found: dict[str, list[Distribution]]) -> list[Check]:
    parts = {name: items[0].version for name, items in sorted(found.items()) if name.startswith(_CUTLASS_PREFIX)}
    if not parts:
        return [Check("CUTLASS DSL", "noted", "not installed")]
    if len(set(parts.values())) > 1:
        return [
            failed("CUTLASS DSL", parts, "one version for all parts", "install all parts in one version, in one step")
        ]
    return [passed("CUTLASS DSL", parts), *_cutlass_files(packages, found)]


def _cutlass_files(packages: Path, found: dict[str, list[Distribution]]) -> list[Check]:
    """Checks that the CUDA part's files are those on disk: libs-base has its paths too (NVIDIA/cutlass#3170)."""
    last = max((name for name in found if name.startswith(_CUTLASS_LAST)), default=None)
    record = packages / found[last][0].folder / "RECORD" if last else None
    if last is None or record is None or not record.is_file():
        return []
    with record.open(newline="") as file:
        rows = [row for row in csv.reader(file) if len(row) == 3 and row[1].startswith("sha256=")]
    other = [path for path, digest, _ in rows if _record_hash(packages / path) != digest]
    subject = f"files of {last}"
    if other:
        return [
            failed(
                subject,
                f"{len(other)} of {len(rows)} files are another package's, such as {other[0]}",
                "those that its RECORD names",
                f"install {last} last, with --force-reinstall (a step that installs all parts of the DSL does)",
            )
        ]
    return [passed(subject, f"{len(rows)} as in its RECORD")]


def _record_hash(path: Path) -> str:
    if not path.is_file():
        return "absent"
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return f"sha256={base64.urlsafe_b64encode(digest.digest()).rstrip(b'=').decode()}"


def _kernel_caches(root: Path) -> list[Check]:
    return [
        failed(f"/{cache}", "present", "absent", "kernels compiled before the patches: remove the folder in that step")
        if (root / cache).exists()
        else passed(f"/{cache}", "absent")
        for cache in _KERNEL_CACHES
    ]


def _torch(capability: str | None, packages: Path) -> list[Check]:
    if capability is None:
        return []
    subject = "architectures of torch"
    architectures = torch_architectures(packages)
    if architectures is None:
        return [Check(subject, "unknown", "torch's files do not tell", f"code for {capability}")]
    if not covers(architectures, capability):
        way_out = "use a base whose torch is built for this GPU"
        return [failed(subject, " ".join(architectures), f"code for {capability}", way_out)]
    return [passed(subject, " ".join(architectures))]


def _entrypoint(request: dict[str, Any] | None) -> list[Check]:
    if request is None:
        return []
    expected, found = list(request["expected"]), request.get("found")
    if found is not None and list(found) != expected:
        return [
            failed("entrypoint", found, expected, "set the entrypoint of the catalogue's image to what the image has")
        ]
    program = shutil.which(expected[0])
    if program is None:
        return [failed("entrypoint", f"no program {expected[0]}", expected, "name a program that the image has")]
    return [passed("entrypoint", program)]


def _architecture(request: dict[str, Any] | None) -> list[Check]:
    if request is None:
        return []
    machine = platform.machine()
    found, expected = request.get("found") or _ARCHITECTURES.get(machine.lower(), machine), request["expected"]
    if found != expected:
        return [failed("architecture", found, expected, "pin the digest of the manifest for this platform")]
    return [passed("architecture", found)]
