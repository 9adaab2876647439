"""Whole chains through the program that runs inside the image build, on a root with the sources of their stand-ins."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from runtime.build.patcher import apply_step
from runtime.build.verify import verify
from spec.chain import DebianPackage, PatchChain, resolve_chain
from spec.chain_files import read_step
from spec.dockerfile import Expected, step_request, verify_request
from tests.patches.patched import CHAINS, patched
from tools.patch_sources import PATCHES, path_in_releases


def resolved(name: str) -> PatchChain:
    """Resolves a chain, also one that waits for its digest."""
    description = CHAINS[name].description
    steps = [read_step(PATCHES / name / step, PATCHES) for step in description.steps]
    return resolve_chain(name, f"patches/{name}/chain.yaml", description, steps)


def make_root(root: Path, chain: PatchChain) -> Path:
    """Makes as much of an image as the patcher reads: files, names and versions of packages, NCCL's own version."""
    packages = root / chain.description.packages_folder.lstrip("/")
    named = [entry.file for step in chain.steps for entry in (*step.description.edits, *step.description.asserts)]
    for file in dict.fromkeys(named):
        target = root / chain.description.folder_of(file).lstrip("/") / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(patched(chain.name).folder(file) / path_in_releases(file), target)
    set_versions(packages, chain.description.versions)
    for link in (link for step in chain.steps for link in step.description.links):
        put_target(root, link.target)
    nccl = packages / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    nccl.parent.mkdir(parents=True)
    nccl.write_bytes(b"\x7fELF\0NCCL version 2.30.7+cuda13.3\0")
    set_versions(packages, {"nvidia-nccl-cu13": "2.30.7"})
    return packages


def put_target(root: Path, target: str) -> None:
    """Puts what a link leads to."""
    path = root / target.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def set_debian(root: Path, packages: tuple[DebianPackage, ...]) -> None:
    """Does to dpkg's record what apt would have done."""
    status = root / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True, exist_ok=True)
    with status.open("a", encoding="utf-8") as record:
        for package in packages:
            version = package.version or "1.0-1"
            record.write(f"Package: {package.name}\nStatus: install ok installed\nVersion: {version}\n\n")


def set_versions(packages: Path, versions: dict[str, str]) -> None:
    """Does to the names of packages what pip would have done."""
    for name, version in versions.items():
        for old in packages.glob(f"{name.replace('-', '_')}-[0-9]*.dist-info"):
            shutil.rmtree(old)
        information = packages / f"{name.replace('-', '_')}-{version}.dist-info"
        information.mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (information / "METADATA").write_text(text, encoding="utf-8")


def apply(chain: PatchChain, root: Path, sent: Path) -> list[dict[str, Any]]:
    """Applies every step and returns the reports."""
    reports = []
    for step in chain.steps:
        request = step_request(chain, step)
        for file, described in zip(request["files"], step.description.files, strict=True):
            (sent / file["source"]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(step.contents[described.source].path, sent / file["source"])
        set_versions(root / chain.description.packages_folder.lstrip("/"), step.versions)
        set_debian(root, step.description.debian)
        reports.append(apply_step(request, sent, root))
    return reports


def outcomes(reports: list[dict[str, Any]], kind: str) -> set[str]:
    return {entry["outcome"] for report in reports for entry in report[kind]}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_built_verified_and_not_built_twice(name: str, tmp_path: Path) -> None:
    chain, root, sent = resolved(name), tmp_path / "root", tmp_path / "sent"
    sent.mkdir()
    make_root(root, chain)
    first = apply(chain, root, sent)
    assert outcomes(first, "edits") <= {"applied"}
    assert outcomes(first, "files") <= {"placed"}
    assert outcomes(first, "links") <= {"made"}
    assert "failed" not in outcomes(first, "checks")
    asked = verify_request(chain, Expected(capability=None))
    assert [check for check in verify(asked, root)["checks"] if check["outcome"] == "failed"] == []
    second = apply(chain, root, sent)
    assert outcomes(second, "edits") <= {"already patched"}
    assert outcomes(second, "files") <= {"already there"}
    assert outcomes(second, "links") <= {"already there"}
