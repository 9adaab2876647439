"""Renders the build of an image chain: Dockerfile and context as plain data, the same bytes on any machine.

With BuildKit each step is one layer: its inputs are mounted while it runs. The classic builder cannot mount, so there a
step is two layers, the first one of a few kilobytes with the step's inputs. Either takes only what the step needs from
the context, so a change in one step keeps the layers of all steps before it.
"""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from runtime.build.debian import apt_commands
from runtime.build.pip_commands import pip_commands
from spec.base import Strict, canonical_json, content_hash
from spec.chain import Assertion, Edit, PatchChain, PatchStep, normal_name

Builder = Literal["buildkit", "classic"]

# Where reports are kept in the image: a step's own, and that of the verification.
RECORDS = "/usr/local/share/gb10-serving"
VERIFY_REPORT = f"{RECORDS}/verify.json"

LABEL_PREFIX = "gb10-serving"
IDENTITY_LABEL = f"{LABEL_PREFIX}.chain.identity"
NAME_LABEL = f"{LABEL_PREFIX}.chain.name"
VERIFY_LABEL = f"{LABEL_PREFIX}.verify"

# All of runtime/build/ and the packages that it lies in; each step carries them, so that it needs nothing of another.
TOOLS = (
    "__init__.py",
    "build/__init__.py",
    "build/__main__.py",
    "build/atomic.py",
    "build/checks.py",
    "build/debian.py",
    "build/edits.py",
    "build/errors.py",
    "build/libraries.py",
    "build/links.py",
    "build/packages.py",
    "build/patcher.py",
    "build/pip_commands.py",
    "build/texts.py",
    "build/verify.py",
)

_MOUNTED = "/tmp/gb10-serving-step"
_COPIED = "/opt/gb10-serving/build"


class ContextFile(Strict):
    """One file of a build context: either its text or the file on this machine that holds it.

    Attributes:
        path: inside the context.
        text: what it holds.
        source: the file to send.
    """

    path: str
    text: str | None = None
    source: str | None = None


class BuildContext(Strict):
    """All that a builder is sent.

    Attributes:
        dockerfile: its text; it is not one of the files.
        files: sorted by path.
    """

    dockerfile: str
    files: tuple[ContextFile, ...]


class Start(Strict):
    """An image that already holds the first steps of a chain.

    Attributes:
        reference: of the image, on the node that builds.
        steps: how many it holds; with 0 it stands in for the base.
    """

    reference: str
    steps: int


class Expected(Strict):
    """What the finished image must be beside what its chain says.

    Attributes:
        entrypoint: argv that starts the engine.
        architecture: as Docker names it.
        capability: of the GPU that torch must have code for.
    """

    entrypoint: tuple[str, ...] | None = None
    architecture: str | None = None
    capability: str | None = "12.0"


def build_context(
    chain: PatchChain,
    runtime: Path,
    *,
    builder: Builder = "buildkit",
    until: int | None = None,
    start: Start | None = None,
    expected: Expected | None = None,
) -> BuildContext:
    """Renders the build of a chain or of its first steps.

    Args:
        chain: resolved.
        runtime: the folder runtime/ of this project.
        builder: which one the node has.
        until: how many steps the image has; all of them, and then the verification, if none is given.
        start: an image with earlier steps to build on; the base, as the node keeps it, if none is given.
        expected: of the finished image.

    Raises:
        ValueError: the steps asked for are not in the chain, or the start already has them.
    """
    last, first = len(chain.steps) if until is None else until, start.steps if start else 0
    if not 0 <= first <= last <= len(chain.steps) or first == until:
        raise ValueError(f"steps {first + 1} to {last} are no part of a chain of {len(chain.steps)} steps")
    lines = [f"FROM {start.reference if start else chain.description.origin.reference}"]
    files: list[ContextFile] = []
    for step in chain.steps[first:last]:
        lines += _step_lines(step, builder)
        files += _step_files(chain, step, runtime)
    identity = chain.steps[last - 1].identity
    if until is None:
        identity = finished_identity(chain, expected or Expected())
        lines += _layer("verify", [_tool("verify", "verify.json", "--report", VERIFY_REPORT)], builder)
        request = verify_request(chain, expected or Expected())
        files += [*_tools("verify", runtime), ContextFile(path="verify/verify.json", text=_json(request))]
    lines += [_label(NAME_LABEL, chain.name), _label(IDENTITY_LABEL, identity)]
    files.sort(key=lambda file: file.path)
    return BuildContext(dockerfile="\n".join(lines) + "\n", files=tuple(files))


def finished_identity(chain: PatchChain, expected: Expected) -> str:
    """Returns the identity of a chain's verified image: all steps, and what it was verified to be."""
    return content_hash({"chain": chain.identity, "expected": expected.model_dump(mode="json")})


def finished_reference(chain: PatchChain, expected: Expected) -> str:
    """Returns the tag of a chain's verified image; it carries the identity."""
    return f"gb10-serving/chain:{finished_identity(chain, expected)[:16]}"


def report_label(reference: str, report: str) -> str:
    """Renders the Dockerfile that puts a verification's report on an image as a label; it adds no layer.

    Args:
        reference: of the verified image.
        report: the content of VERIFY_REPORT in it.
    """
    return f"FROM {reference}\n{_label(VERIFY_LABEL, report.strip())}\n"


def step_request(chain: PatchChain, step: PatchStep) -> dict[str, Any]:
    """Returns what the patcher reads about one step; nothing in it depends on the step's purpose or comments."""
    packages = step.description.packages
    removed = {normal_name(name) for name in packages.remove} - set(packages.pins) if packages else set[str]()
    return {
        "name": step.name,
        "identity": step.identity,
        "packages_folder": chain.description.packages_folder,
        "base_versions": chain.description.versions if step.position == 1 else {},
        "versions": step.versions,
        "removed": sorted(removed),
        "edits": [_in_image(chain, edit.model_dump(mode="json")) for edit in step.description.edits],
        "files": [
            {
                "source": _sent_name(index),
                "target": file.target,
                "mode": file.mode,
                "sha256": step.contents[file.source].sha256,
            }
            for index, file in enumerate(step.description.files)
        ],
        "links": [link.model_dump(mode="json") for link in step.description.links],
        "debian": [package.model_dump(mode="json") for package in step.description.debian],
        "asserts": [_asserted(chain, assertion) for assertion in step.description.asserts],
    }


def verify_request(chain: PatchChain, expected: Expected) -> dict[str, Any]:
    """Returns what the verification of the finished image reads."""
    changes = [step.description.packages for step in chain.steps if step.description.packages]
    removed = {normal_name(name) for change in changes for name in change.remove}
    request: dict[str, Any] = {
        "packages_folder": chain.description.packages_folder,
        "versions": chain.versions,
        "absent": sorted(removed - set(chain.versions)),
        "edits": _expected_edits(chain),
        "links": [link.model_dump(mode="json") for step in chain.steps for link in step.description.links],
        "debian": _expected_debian(chain),
        "asserts": [_asserted(chain, assertion) for step in chain.steps for assertion in step.description.asserts],
        "capability": expected.capability,
    }
    if expected.entrypoint is not None:
        request["entrypoint"] = {"expected": list(expected.entrypoint)}
    if expected.architecture is not None:
        request["architecture"] = {"expected": expected.architecture}
    return request


def _expected_edits(chain: PatchChain) -> list[dict[str, Any]]:
    """Returns for each edit what the finished files must show: a later step may replace what an earlier one wrote."""
    edits = [(step.name, edit) for step in chain.steps for edit in step.description.edits]
    expected: list[dict[str, Any]] = []
    for index, (name, edit) in enumerate(edits):
        later = [other for _, other in edits[index + 1 :] if other.file == edit.file]
        shown = {
            "step": name,
            "file": edit.file,
            "marker": None if any(_removes(other, edit.marker) for other in later) else edit.marker,
            "anchor": edit.anchor,
            "leftover": sum(other.count * other.replacement.count(edit.anchor) for other in (edit, *later)),
        }
        expected.append(_in_image(chain, shown))
    return expected


def _asserted(chain: PatchChain, assertion: Assertion) -> dict[str, Any]:
    return _in_image(chain, assertion.model_dump(mode="json", exclude_none=True))


def _in_image(chain: PatchChain, entry: dict[str, Any]) -> dict[str, Any]:
    """Adds the folder that an entry's file is in, where that is not the packages folder."""
    folder = chain.description.folder_of(entry["file"])
    return entry if folder == chain.description.packages_folder else entry | {"folder": folder}


def _expected_debian(chain: PatchChain) -> list[dict[str, Any]]:
    """Returns the Debian packages of all steps; of one that two steps install, the later."""
    packages = {package.name: package for step in chain.steps for package in step.description.debian}
    return [package.model_dump(mode="json") for _, package in sorted(packages.items())]


def _removes(edit: Edit, text: str) -> bool:
    return text in edit.anchor and text not in edit.replacement


def _step_lines(step: PatchStep, builder: Builder) -> list[str]:
    change = step.description.packages
    check = [_tool("check", "step.json")] if step.position == 1 else []
    apt = apt_commands([package.model_dump(mode="json") for package in step.description.debian])
    apply = _tool("apply", "step.json", "--report", f"{RECORDS}/steps/{step.slug}.json")
    pip = pip_commands(change.model_dump(mode="json") if change else None, step.versions)
    label = _label(f"{LABEL_PREFIX}.step.{step.slug}", step.identity)
    return [label, *_layer(step.slug, [*check, *apt, *pip, apply], builder)]


def _layer(folder: str, commands: Sequence[Sequence[str]], builder: Builder) -> list[str]:
    """Renders the lines that run commands beside the inputs in a folder of the context."""
    if builder == "buildkit":
        place, before = _MOUNTED, []
        start = f"RUN --mount=type=bind,source={folder},target={place} \\\n    cd {place}"
    else:
        place = f"{_COPIED}/{folder}"
        before, start = [f"COPY {folder} {place}"], f"RUN cd {place}"
    return [*before, " && \\\n    ".join([start, *(shlex.join(command) for command in commands)])]


def _tool(*command: str) -> list[str]:
    return ["python3", "-B", "-m", "runtime.build", *command]


def _step_files(chain: PatchChain, step: PatchStep, runtime: Path) -> list[ContextFile]:
    placed = [
        ContextFile(path=f"{step.slug}/{_sent_name(index)}", source=step.contents[file.source].path)
        for index, file in enumerate(step.description.files)
    ]
    request = ContextFile(path=f"{step.slug}/step.json", text=_json(step_request(chain, step)))
    return [*_tools(step.slug, runtime), request, *placed]


def _tools(folder: str, runtime: Path) -> list[ContextFile]:
    return [ContextFile(path=f"{folder}/runtime/{name}", source=str(runtime / name)) for name in TOOLS]


def _sent_name(index: int) -> str:
    return f"files/{index}"


def _json(data: dict[str, Any]) -> str:
    return f"{canonical_json(data)}\n"


def _label(key: str, value: str) -> str:
    """Renders a label whose value a Dockerfile neither unquotes nor expands."""
    return f"LABEL {key}={json.dumps(value, ensure_ascii=False).replace('$', chr(92) + '$')}"
