"""Applies one step of an image chain: everything is worked out and checked in memory, then all files change at once."""

import contextlib
import hashlib
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.build.atomic import Change, replace_all
from runtime.build.checks import Check
from runtime.build.debian import check_debian
from runtime.build.edits import ALREADY_PATCHED, Edit, apply_edits
from runtime.build.errors import BuildError
from runtime.build.libraries import NCCL_LIBRARY, nccl_version
from runtime.build.links import is_made, place_of
from runtime.build.packages import Distribution, installed
from runtime.build.texts import check_assertion, path_of, read_text
from runtime.build.verify import NCCL_PREFIX, check_forbidden, check_nccl, check_versions


@dataclass
class _Plan:
    """What a step will do.

    Attributes:
        changes: files to write.
        edits: report lines of the edits.
        files: report lines of the placed files.
        links: report lines of the links.
    """

    changes: list[Change] = field(default_factory=list)
    edits: list[dict[str, Any]] = field(default_factory=list)
    files: list[dict[str, Any]] = field(default_factory=list)
    links: list[dict[str, Any]] = field(default_factory=list)


def check_base(step: dict[str, Any], root: Path = Path("/")) -> list[dict[str, Any]]:
    """Checks the packages of the base before the first step.

    Args:
        step: the step's JSON; the key base_versions says what the base must have.
        root: of the image.

    Raises:
        BuildError: a package of the base has another version.
    """
    packages = root / step["packages_folder"].lstrip("/")
    checks = check_versions(step["base_versions"], installed(packages))
    _require("base-version", f"before {step['name']}: the base is not the one that this chain is for", checks)
    return [check.as_json() for check in checks]


def apply_step(step: dict[str, Any], folder: Path, root: Path = Path("/")) -> dict[str, Any]:
    """Applies a step's edits, files and links, and checks its packages and assertions.

    Args:
        step: the step's JSON, as spec/dockerfile.py writes it.
        folder: holds the files that the step places.
        root: of the image.

    Returns:
        What was done, one entry for each edit, file, link and check.

    Raises:
        BuildError: something does not fit; no file has changed.
        OSError: a file could not be written; no file has changed.
    """
    name, packages = step["name"], root / step["packages_folder"].lstrip("/")
    if not packages.is_dir():
        raise BuildError(
            "no-packages-folder",
            f"{name}: {step['packages_folder']} is not a folder of this image\n"
            "Way out: correct packages_folder in chain.yaml to where this base has vllm.",
        )
    found = installed(packages)
    checks = [
        *check_versions(step["versions"], found),
        *check_forbidden(tuple(step["removed"]), packages, found),
        *check_nccl(step["versions"], packages, found, root),
        *check_debian(step["debian"], root),
    ]
    _require("version", f"{name}: after this step the packages are not what the chain says", checks)
    plan = _Plan()
    _plan_edits(plan, step, packages, root)
    _plan_files(plan, step, folder, root, _nccl_versions(step, found))
    _plan_links(plan, step, root)
    planned = {change.path: change.content for change in plan.changes if change.link is None}
    asserted = [
        check_assertion(assertion, packages, root, lambda path: _planned_text(path, planned))
        for assertion in step["asserts"]
    ]
    _require("assertion", f"{name}: an assertion does not hold", asserted)
    replace_all(plan.changes)
    for change in plan.changes:
        _remove_compiled(change.path)
    return {
        "step": name,
        "identity": step["identity"],
        "edits": plan.edits,
        "files": plan.files,
        "links": plan.links,
        "checks": [check.as_json() for check in (*checks, *asserted)],
    }


def _plan_edits(plan: _Plan, step: dict[str, Any], packages: Path, root: Path) -> None:
    by_file: dict[Path, list[Edit]] = {}
    for edit in step["edits"]:
        content = {key: value for key, value in edit.items() if key != "folder"}
        by_file.setdefault(path_of(edit, packages, root).resolve(), []).append(Edit(**content))
    for path, edits in by_file.items():
        file, text = edits[0].file, read_text(path)
        if text is None:
            raise BuildError(
                "file-absent",
                f"{step['name']}: {file}: there is no such file in {_folder_of(step, file)}\n"
                "Way out: this base has the code elsewhere or not at all: correct the path, or leave the step out.",
            )
        edited, outcomes = apply_edits(step["name"], text, edits)
        plan.edits += [
            {"file": file, "marker": edit.marker, "count": edit.count, "outcome": outcome}
            for edit, outcome in zip(edits, outcomes, strict=True)
        ]
        if edited != text:
            content = edited.encode("utf-8", "surrogateescape")
            _compile(step["name"], file, content)
            plan.changes.append(Change(path, content))


def _folder_of(step: dict[str, Any], file: str) -> str:
    return next(
        (edit["folder"] for edit in step["edits"] if edit["file"] == file and "folder" in edit), step["packages_folder"]
    )


def _plan_files(plan: _Plan, step: dict[str, Any], folder: Path, root: Path, nccl: dict[str, str]) -> None:
    for file in step["files"]:
        content, target = (folder / file["source"]).read_bytes(), root / file["target"].lstrip("/")
        digest = hashlib.sha256(content).hexdigest()
        if digest != file["sha256"]:
            raise BuildError(
                "file-changed",
                f"{step['name']}: {file['target']}: the file sent has SHA-256 {digest} instead of {file['sha256']}\n"
                "Way out: it changed while the build was prepared; start the build again.",
            )
        if target.resolve() in {change.path for change in plan.changes}:
            raise BuildError(
                "two-writers",
                f"{step['name']}: {file['target']}: the step also edits this file, or places it twice\n"
                "Way out: edit the file in the step's folder instead.",
            )
        _compile(step["name"], file["target"], content)
        _require_same_nccl(step["name"], file["target"], folder / file["source"], nccl)
        mode = int(file["mode"], 8)
        there = target.is_file() and target.read_bytes() == content and target.stat().st_mode & 0o7777 == mode
        plan.files.append({"target": file["target"], "outcome": "already there" if there else "placed"})
        if not there:
            plan.changes.append(Change(target.parent.resolve() / target.name, content, mode))


def _nccl_versions(step: dict[str, Any], found: dict[str, list[Distribution]]) -> dict[str, str]:
    """Returns which NCCL the chain pins, and which one is installed where it pins none."""
    versions = {name: distributions[0].version for name, distributions in found.items()} | step["versions"]
    return {name: version for name, version in versions.items() if name.startswith(NCCL_PREFIX)}


def _require_same_nccl(step: str, target: str, source: Path, versions: dict[str, str]) -> None:
    """Refuses a libnccl of another version than its package: it would be found when ranks meet, or never."""
    if not versions or not Path(target).name.startswith(NCCL_LIBRARY):
        return
    real = nccl_version(source)
    if real not in {".".join(version.split(".")[:3]) for version in versions.values()}:
        raise BuildError(
            "version",
            f"{step}: {target}: the file placed is NCCL {real}, the image has {versions}\n"
            "Way out: place the library of that version, or change the package and its pin in this step.",
        )


def _plan_links(plan: _Plan, step: dict[str, Any], root: Path) -> None:
    for link in step["links"]:
        there = is_made(step["name"], link, root)
        plan.links.append({**link, "outcome": "already there" if there else "made"})
        if not there:
            plan.changes.append(Change(place_of(link, root), link=link["target"]))


def _compile(step: str, file: str, content: bytes) -> None:
    """Compiles Python in memory, so that no compiled file is left and a broken edit ends the build here."""
    if not file.endswith(".py"):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(content, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise BuildError(
            "not-python",
            f"{step}: {file}: the patched file is not valid Python: {error}\n"
            "Way out: look at the indentation and the line ends of the replacement.",
        ) from None


def _remove_compiled(path: Path) -> None:
    """Removes what Python compiled from the file's earlier content; it may be of the kind that is never compared."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        if path.suffix == ".py":
            with contextlib.suppress(FileNotFoundError):
                compiled.unlink()


def _planned_text(path: Path, planned: dict[Path, bytes]) -> str | None:
    content = planned.get(path.resolve(), planned.get(path))
    return read_text(path) if content is None else content.decode("utf-8", "surrogateescape")


def _require(kind: str, text: str, checks: list[Check]) -> None:
    wrong = [check for check in checks if check.outcome == "failed"]
    if wrong:
        raise BuildError(kind, f"{text}\n" + "\n".join(str(check) for check in wrong))


def summary(report: dict[str, Any]) -> str:
    """One line for the build's log."""
    done = sum(edit["outcome"] != ALREADY_PATCHED for edit in report["edits"])
    return (
        f"{report['step']}: {done} edits applied, {len(report['edits']) - done} already patched, "
        f"{sum(file['outcome'] == 'placed' for file in report['files'])} files placed, "
        f"{sum(link['outcome'] == 'made' for link in report['links'])} links made, "
        f"{len(report['checks'])} checks passed"
    )
