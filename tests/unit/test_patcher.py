"""The patcher: four different messages, nothing half done, and a second run that does nothing."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.build.atomic import Change, replace_all
from runtime.build.debian import installed_versions
from runtime.build.edits import ALREADY_PATCHED, APPLIED, Edit, apply_edits
from runtime.build.errors import BuildError
from runtime.build.patcher import apply_step, check_base

BEFORE = "def gate(major):\n    return major == 9\n"
AFTER = "def gate(major):\n    return major in (9, 12)  # GB10\n"


def edit(file: str = "vllm/a.py", **changes: Any) -> dict[str, Any]:
    usual = {"anchor": "major == 9\n", "count": 1, "replacement": "major in (9, 12)  # GB10\n", "marker": "# GB10"}
    return {"file": file, **usual, **changes}


def step(**content: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {
        "base_versions": {},
        "versions": {},
        "removed": [],
        "edits": [],
        "files": [],
        "links": [],
        "debian": [],
        "asserts": [],
    }
    return {"name": "gate", "identity": "0" * 64, "packages_folder": "/packages", **empty, **content}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root" / "packages" / "vllm"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text(BEFORE)
    (folder / "b.py").write_text(BEFORE)
    return tmp_path / "root"


def content_of(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mode)
        for path in root.rglob("*")
        if path.is_file()
    }


def apply(root: Path, **content: Any) -> dict[str, Any]:
    return apply_step(step(**content), root, root)


def refusal(root: Path, **content: Any) -> BuildError:
    before = content_of(root)
    with pytest.raises(BuildError) as caught:
        apply(root, **content)
    assert content_of(root) == before
    assert "Way out: " in str(caught.value)
    return caught.value


def test_an_edit_replaces_its_anchor_and_keeps_the_mode(root: Path) -> None:
    path = root / "packages/vllm/a.py"
    path.chmod(0o640)
    report = apply(root, edits=[edit()])
    assert path.read_text() == AFTER
    assert path.stat().st_mode & 0o777 == 0o640
    assert report["edits"] == [{"file": "vllm/a.py", "marker": "# GB10", "count": 1, "outcome": APPLIED}]


def test_a_second_run_does_nothing_and_says_so(root: Path) -> None:
    apply(root, edits=[edit()])
    before = (root / "packages/vllm/a.py").stat()
    report = apply(root, edits=[edit()])
    assert report["edits"][0]["outcome"] == ALREADY_PATCHED
    assert (root / "packages/vllm/a.py").stat() == before


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        (edit(anchor="major == 10\n"), "anchor-missing", "the anchor is missing, it must stand there once"),
        (edit(anchor="major"), "anchor-doubled", "it stands there 2 times (lines 1, 2) instead of once"),
        (edit("vllm/absent.py"), "file-absent", "there is no such file in /packages"),
        (edit(count=2), "anchor-too-few", "stands there only once (lines 2) instead of 2 times"),
        (edit(replacement="((  # GB10\n"), "not-python", "is not valid Python"),
    ],
)
def test_each_failure_has_its_own_message_and_changes_nothing(
    root: Path, wrong: dict[str, Any], kind: str, words: str
) -> None:
    error = refusal(root, edits=[edit("vllm/b.py"), wrong])
    assert error.kind == kind
    assert words in str(error)
    assert str(error).startswith(f"gate: {wrong['file']}: ")


def test_a_file_with_marker_and_anchor_is_half_patched(root: Path) -> None:
    (root / "packages/vllm/a.py").write_text(BEFORE + "# GB10\n")
    assert refusal(root, edits=[edit()]).kind == "half-patched"


def test_a_replacement_may_contain_its_anchor(root: Path) -> None:
    longer = edit(anchor=BEFORE, replacement=f"{BEFORE}    # GB10\n")
    assert [apply(root, edits=[longer])["edits"][0]["outcome"] for _ in range(2)] == [APPLIED, ALREADY_PATCHED]


def test_edits_of_one_step_that_undo_each_other_are_refused(root: Path) -> None:
    back = edit(anchor="major in (9, 12)  # GB10\n", replacement="major == 9\n# other\n", marker="# other")
    assert refusal(root, edits=[edit(), back]).kind == "edit-undone"


def test_several_edits_of_one_file_build_on_each_other(root: Path) -> None:
    second = edit(anchor="def gate(", replacement="# second\ndef gate(", marker="# second")
    apply(root, edits=[edit(), second])
    assert (root / "packages/vllm/a.py").read_text() == f"# second\n{AFTER}"


def test_bytes_that_are_not_utf8_survive(root: Path) -> None:
    path = root / "packages/vllm/a.cuh"
    path.write_bytes(b"\xff\r\n? 32")
    apply(root, edits=[edit("vllm/a.cuh", anchor="? 32", replacement="? min(32) /* GB10 */", marker="GB10")])
    assert path.read_bytes() == b"\xff\r\n? min(32) /* GB10 */"


def test_what_python_compiled_before_is_removed_and_nothing_compiled_is_left(root: Path) -> None:
    cache = root / "packages/vllm/__pycache__"
    cache.mkdir()
    (cache / "a.cpython-312.pyc").write_bytes(b"old")
    (cache / "ab.cpython-312.pyc").write_bytes(b"other")
    apply(root, edits=[edit()])
    assert [path.name for path in cache.iterdir()] == ["ab.cpython-312.pyc"]


def test_files_are_placed_by_content_and_mode(root: Path) -> None:
    (root / "files").mkdir()
    (root / "files/0").write_text("run")
    sent = {"source": "files/0", "target": "/opt/new/run", "mode": "0755", "sha256": hashlib.sha256(b"run").hexdigest()}
    assert [apply(root, files=[sent])["files"][0]["outcome"] for _ in range(2)] == ["placed", "already there"]
    assert (root / "opt/new/run").stat().st_mode & 0o777 == 0o755
    assert refusal(root, files=[sent | {"sha256": "0" * 64}]).kind == "file-changed"
    assert refusal(root, edits=[edit()], files=[sent | {"target": "/packages/vllm/a.py"}]).kind == "two-writers"


@pytest.mark.parametrize(
    ("assertion", "holds"),
    [
        ({"file": "vllm/a.py", "contains": "# GB10", "count": 1}, True),
        ({"file": "vllm/a.py", "contains": "# GB10", "count": 2}, False),
        ({"file": "vllm/a.py", "absent": "major == 9"}, True),
        ({"file": "vllm/b.py", "absent": "major == 9"}, False),
        ({"file": "vllm/absent.py", "absent": "x"}, False),
    ],
)
def test_assertions_see_the_files_as_the_step_leaves_them(root: Path, assertion: dict[str, Any], holds: bool) -> None:
    if holds:
        apply(root, edits=[edit()], asserts=[assertion])
    else:
        assert refusal(root, edits=[edit()], asserts=[assertion]).kind == "assertion"


def test_a_step_that_took_nccl_down_ends_the_build_with_the_version_and_its_name(root: Path) -> None:
    (root / "packages/nvidia_nccl_cu13-2.29.7.dist-info").mkdir()
    error = refusal(root, versions={"nvidia-nccl-cu13": "2.30.7"}, edits=[edit()])
    assert error.kind == "version"
    assert str(error).startswith("gate: after this step")
    assert "nvidia-nccl-cu13: failed: 2.29.7, must be: 2.30.7" in str(error)


def test_a_step_that_places_another_nccl_ends_the_build(root: Path) -> None:
    (root / "packages/nvidia_nccl_cu13-2.30.7.dist-info").mkdir()
    library = root / "packages/nvidia/nccl/lib/libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\x7fELF\0NCCL version 2.30.7+cuda13.3\0")
    older = b"\x7fELF\0NCCL version 2.29.7+cuda13.1\0"
    (root / "sent").write_bytes(older)
    sent = {"source": "sent", "target": "/packages/nvidia/nccl/lib/libnccl.so.2", "mode": "0644"}
    placed = sent | {"sha256": hashlib.sha256(older).hexdigest()}
    error = refusal(root, versions={"nvidia-nccl-cu13": "2.30.7"}, files=[placed])
    assert error.kind == "version"
    assert str(error).startswith("gate: /packages/nvidia/nccl/lib/libnccl.so.2: the file placed is NCCL 2.29.7")


def test_a_file_of_a_source_folder_is_edited_and_asserted_there(root: Path) -> None:
    source = root / "src/sglang/a.py"
    source.parent.mkdir(parents=True)
    source.write_text(BEFORE)
    there = edit("sglang/a.py", folder="/src")
    asserted = {"file": "sglang/a.py", "contains": "(9, 12)", "count": 1, "folder": "/src"}
    apply(root, edits=[there], asserts=[asserted])
    assert source.read_text() == AFTER
    assert "there is no such file in /src\n" in str(refusal(root, edits=[edit("sglang/b.py", folder="/src")]))


LINK = {"path": "/usr/local/cuda/include/nvrtc.h", "target": "/packages/vllm/a.py"}


def test_a_link_is_made_once(root: Path) -> None:
    reports = [apply(root, links=[LINK])["links"] for _ in range(2)]
    assert reports == [[LINK | {"outcome": outcome}] for outcome in ("made", "already there")]
    made = root / "usr/local/cuda/include/nvrtc.h"
    assert str(made.readlink()) == LINK["target"]
    assert [path.name for path in made.parent.iterdir()] == [made.name]


def put_file(path: Path) -> None:
    path.write_text("real")


def put_link(path: Path) -> None:
    path.symlink_to("/elsewhere")


@pytest.mark.parametrize(
    ("put", "words"),
    [(put_file, "a file is there"), (put_link, "a link to /elsewhere is there"), (Path.mkdir, "a folder is there")],
)
def test_a_link_replaces_nothing_but_itself(root: Path, put: Callable[[Path], None], words: str) -> None:
    path = root / "usr/local/cuda/include/nvrtc.h"
    path.parent.mkdir(parents=True)
    put(path)
    error = refusal(root, edits=[edit()], links=[LINK])
    assert error.kind == "in-the-way"
    assert words in str(error)


def test_a_link_to_nowhere_is_refused(root: Path) -> None:
    error = refusal(root, edits=[edit()], links=[LINK | {"target": "/packages/vllm/absent.h"}])
    assert error.kind == "link-to-nowhere"
    assert not (root / "usr").exists()


def write_status(root: Path, text: str) -> None:
    status = root / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True, exist_ok=True)
    status.write_text(text)


STATUS = """\
Package: iproute2
Status: install ok installed
Architecture: arm64
Version: 6.1.0-1ubuntu6
Description: tools
 Package: not-a-package
 Version: 9

Package: libibverbs1
Status: hold ok installed
Version: 50.0-2build2

Package: ibverbs-providers
Status: deinstall ok config-files
Version: 50.0-2build2
"""


def test_debian_packages_are_read_from_dpkgs_record(root: Path) -> None:
    write_status(root, STATUS)
    pinned = {"name": "iproute2", "version": "6.1.0-1ubuntu6", "any_version": False}
    free = {"name": "libibverbs1", "version": None, "any_version": True}
    shown = [(check["outcome"], check["found"]) for check in apply(root, debian=[pinned, free])["checks"][-2:]]
    assert shown == [
        ("passed", "6.1.0-1ubuntu6"),
        ("noted", "50.0-2build2: not pinned (any_version), another build may have another"),
    ]


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ({"name": "iproute2", "version": "6.2"}, "6.1.0-1ubuntu6, must be: 6.2"),
        ({"name": "ibverbs-providers", "version": "50.0-2build2"}, "not installed, must be: 50.0-2build2"),
        ({"name": "not-a-package", "version": None, "any_version": True}, "not installed, must be: any version"),
    ],
)
def test_a_debian_package_that_is_not_there_ends_the_build(root: Path, package: dict[str, Any], words: str) -> None:
    write_status(root, STATUS)
    error = refusal(root, edits=[edit()], debian=[{"any_version": False} | package])
    assert f"Debian package {package['name']}: failed: {words}" in str(error)


def test_dpkgs_own_answer_is_the_same() -> None:
    asked = ["dpkg-query", "--show", "--showformat=${db:Status-Abbrev}|${Package}|${Version}\n"]
    lines = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    expected: dict[str, set[str]] = {}
    for state, name, version in (line.split("|") for line in lines):
        if state[1] == "i":
            expected.setdefault(name, set()).add(version)
    assert installed_versions(Path("/")) == expected


def test_an_image_without_dpkgs_record_has_no_debian_package(root: Path) -> None:
    assert "not installed" in str(refusal(root, debian=[{"name": "iproute2", "version": "1", "any_version": False}]))


def test_another_base_than_the_chain_is_for_is_refused(root: Path) -> None:
    (root / "packages/vllm-0.32.0.dist-info").mkdir()
    check_base(step(base_versions={"vllm": "0.32.0"}), root)
    with pytest.raises(BuildError, match=r"vllm: failed: 0\.32\.0, must be: 0\.33\.0"):
        check_base(step(base_versions={"vllm": "0.33.0"}), root)


def test_a_packages_folder_that_is_not_there_is_named(root: Path) -> None:
    with pytest.raises(BuildError, match="/usr/lib/python3 is not a folder of this image"):
        apply(root, packages_folder="/usr/lib/python3")


class FaultError(OSError):
    """What a full disk raises."""


def failing(real: Callable[..., Any], at: int) -> Callable[..., Any]:
    """A function that fails in its call number `at`."""
    calls = 0

    def call(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise FaultError
        return real(*arguments, **keywords)

    return call


@pytest.mark.parametrize("at", range(1, 4))
@pytest.mark.parametrize(
    ("place", "name"),
    [
        (Path, "replace"),
        (Path, "hardlink_to"),
        (Path, "chmod"),
        (Path, "mkdir"),
        (Path, "symlink_to"),
        (os, "fsync"),
    ],
)
def test_a_fault_at_any_point_of_writing_changes_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, at: int
) -> None:
    packages = root / "packages/vllm"
    new = root / "opt/a/b/new"
    link = Change(root / "opt/link", link=str(new))
    changes = [Change(packages / "a.py", b"1"), Change(packages / "b.py", b"2"), Change(new, b"3", 0o755), link]
    before = content_of(root)
    with monkeypatch.context() as patched:
        patched.setattr(place, name, failing(getattr(place, name), at))
        try:
            replace_all(changes)
        except FaultError:
            failed = True
        else:
            failed = False
    if failed:
        assert content_of(root) == before
        assert not (root / "opt").exists()
    else:
        assert [change.path.read_bytes() for change in changes] == [b"1", b"2", b"3", b"3"]
        assert link.path.is_symlink()
    assert not list(root.rglob(".*"))


TEXTS = st.text("ab#\n", max_size=12)


@given(TEXTS, st.lists(st.tuples(st.text("ab\n", min_size=1, max_size=3), TEXTS, st.integers(1, 3)), max_size=3))
def test_edits_either_fail_or_a_second_run_finds_them_all_done(
    text: str, given_edits: list[tuple[str, str, int]]
) -> None:
    edits = [
        Edit("f", anchor, count, f"{replacement}@{number}@", f"@{number}@")
        for number, (anchor, replacement, count) in enumerate(given_edits)
    ]
    try:
        patched, _ = apply_edits("step", text, edits)
    except BuildError:
        return
    assert apply_edits("step", patched, edits) == (patched, [ALREADY_PATCHED] * len(edits))


def test_it_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    project = Path(__file__).parents[2]
    command = [sys.executable, "-I", "-S", "-B", "-c"]
    code = f"import sys; sys.path.insert(0, {str(project)!r}); import runtime.build.patcher, runtime.build.verify"
    subprocess.run([*command, code], check=True, cwd=tmp_path)
