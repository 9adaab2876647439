"""Image chains: what counts for an identity, what is refused, and what is sent to the builder."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtime.build.debian import apt_commands
from runtime.build.pip_commands import PIP, pip_commands
from spec.chain import PatchChain, step_content
from spec.chain_files import read_chain
from spec.dockerfile import (
    RECORDS,
    TOOLS,
    VERIFY_REPORT,
    Expected,
    Start,
    build_context,
    finished_identity,
    report_label,
    step_request,
    verify_request,
)
from spec.errors import SpecificationError

PROJECT = Path(__file__).parents[2]
RUNTIME = PROJECT / "runtime"
DIGEST = f"sha256:{'0' * 64}"
EDIT = {"file": "vllm/a.py", "anchor": "x = 1\n", "replacement": "x = 2  # GB10\n", "marker": "# GB10"}


def chain_data(*steps: str, **changes: Any) -> dict[str, Any]:
    return {
        "purpose": "a test",
        "base": {"repository": "vllm/vllm-openai", "digest": DIGEST, "tag": "nightly"},
        "packages_folder": "/usr/lib/python3/dist-packages",
        "versions": {"vllm": "0.33.0", "nvidia-nccl-cu13": "2.30.7"},
        "steps": list(steps),
        **changes,
    }


def step_data(**content: Any) -> dict[str, Any]:
    return {"purpose": "a purpose", "source": "a source", **content}


class Folders:
    """A patches folder with one chain, written as people write it."""

    def __init__(self, patches: Path) -> None:
        self.patches = patches
        self.chain = patches / "sm121"

    def write_step(self, name: str, data: dict[str, Any], comment: str = "") -> None:
        folder = self.chain / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "step.yaml").write_text(comment + yaml.safe_dump(data))

    def write_chain(self, data: dict[str, Any]) -> None:
        self.chain.mkdir(parents=True, exist_ok=True)
        (self.chain / "chain.yaml").write_text(yaml.safe_dump(data))

    def read(self) -> PatchChain:
        return read_chain(self.chain)

    def refusal(self) -> str:
        with pytest.raises(SpecificationError) as caught:
            self.read()
        assert "Way out: " in str(caught.value)
        return str(caught.value)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    made = Folders(tmp_path / "patches")
    made.write_chain(chain_data("gate", "../steps/tile", "template"))
    made.write_step("gate", step_data(edits=[EDIT]))
    made.write_step("../steps/tile", step_data(asserts=[{"file": "vllm/b.py", "contains": "min("}]))
    made.write_step("template", step_data(files=[{"source": "t.jinja", "target": "/usr/share/t.jinja"}]))
    (made.chain / "template" / "t.jinja").write_text("{{ messages }}")
    return made


def identities(folders: Folders) -> list[str]:
    return [step.identity for step in folders.read().steps]


def changed(before: list[str], after: list[str]) -> list[int]:
    return [index for index, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]


def test_comments_purposes_sources_and_tags_change_no_identity(folders: Folders) -> None:
    before = identities(folders)
    data = chain_data("gate", "../steps/tile", "template", purpose="another")
    data["base"] = {"repository": "vllm/vllm-openai", "digest": DIGEST}
    folders.write_chain(data)
    step = {
        "purpose": "p",
        "source": "s",
        "edits": [EDIT | {"count": 1}],
        "base_is_absent": True,
        "tested_against": "x",
    }
    folders.write_step("gate", step, "# why\n")
    (folders.chain / "template" / "README.md").write_text("read me")
    assert identities(folders) == before


@pytest.mark.parametrize(
    ("name", "step", "expected"),
    [
        ("gate", {"edits": [EDIT | {"replacement": "x = 3  # GB10\n"}]}, [0, 1, 2]),
        ("gate", {"edits": [EDIT | {"count": 2}]}, [0, 1, 2]),
        ("gate", {"edits": [EDIT], "packages": {"remove": ["b"]}}, [0, 1, 2]),
        ("../steps/tile", {"asserts": [{"file": "vllm/b.py", "absent": "min("}]}, [1, 2]),
        ("template", {"files": [{"source": "t.jinja", "target": "/t.jinja"}]}, [2]),
        ("template", {"files": [{"source": "t.jinja", "target": "/usr/share/t.jinja", "mode": "0600"}]}, [2]),
        ("gate", {"edits": [EDIT], "links": [{"path": "/a", "target": "/b"}]}, [0, 1, 2]),
        ("gate", {"edits": [EDIT], "debian": [{"name": "iproute2", "version": "6.1.0-1"}]}, [0, 1, 2]),
        ("gate", {"edits": [EDIT], "debian": [{"name": "iproute2", "any_version": True}]}, [0, 1, 2]),
    ],
)
def test_a_change_gives_its_step_and_all_later_ones_a_new_identity(
    folders: Folders, name: str, step: dict[str, Any], expected: list[int]
) -> None:
    before = identities(folders)
    folders.write_step(name, step_data(**step))
    assert changed(before, identities(folders)) == expected


@pytest.mark.parametrize(
    ("key", "one", "other"),
    [
        ("links", {"path": "/a", "target": "/b"}, {"path": "/a", "target": "/c"}),
        ("debian", {"name": "iproute2", "version": "6.1.0-1"}, {"name": "iproute2", "version": "6.1.0-2"}),
        ("debian", {"name": "iproute2", "version": "6.1.0-1"}, {"name": "iproute2", "any_version": True}),
    ],
)
def test_links_and_debian_packages_count(
    folders: Folders, key: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    folders.write_step("gate", step_data(**{key: [one]}))
    before = identities(folders)
    folders.write_step("gate", step_data(**{key: [other]}))
    assert changed(before, identities(folders)) == [0, 1, 2]


def test_a_step_without_links_and_debian_packages_has_the_identity_of_before_there_were_any(folders: Folders) -> None:
    """Otherwise every image would be built and carried anew for a format that its steps do not use."""
    description = folders.read().steps[0].description
    assert set(step_content(description, {})) == {"edits", "packages", "files", "asserts"}


def test_a_placed_file_counts_by_content_and_not_by_name(folders: Folders) -> None:
    before = identities(folders)
    template = folders.chain / "template"
    (template / "t.jinja").rename(template / "u.jinja")
    folders.write_step("template", step_data(files=[{"source": "u.jinja", "target": "/usr/share/t.jinja"}]))
    assert identities(folders) == before
    (template / "u.jinja").write_text("{{ other }}")
    assert changed(before, identities(folders)) == [2]


@pytest.mark.parametrize(
    "change",
    [
        {"base": {"repository": "vllm/vllm-openai", "digest": f"sha256:{'1' * 64}"}},
        {"packages_folder": "/usr/local/lib/python3.12/dist-packages"},
        {"versions": {"vllm": "0.32.0"}},
    ],
)
def test_another_base_changes_every_identity(folders: Folders, change: dict[str, Any]) -> None:
    before = identities(folders)
    folders.write_chain(chain_data("gate", "../steps/tile", "template", **change))
    assert changed(before, identities(folders)) == [0, 1, 2]


def test_a_source_folder_counts_where_there_is_one(folders: Folders) -> None:
    before = identities(folders)
    data = chain_data("gate", "../steps/tile", "template", source_folders={"sglang": "/sgl-workspace/sglang/python"})
    folders.write_chain(data)
    assert changed(before, identities(folders)) == [0, 1, 2]


@pytest.mark.parametrize("folder", ["relative", "/a/../b"])
def test_a_source_folder_is_an_absolute_path(folders: Folders, folder: str) -> None:
    folders.write_chain(chain_data("gate", source_folders={"sglang": folder}))
    assert "source_folders" in folders.refusal()


def test_what_is_sent_says_where_a_file_of_a_source_folder_is(folders: Folders) -> None:
    folders.write_chain(chain_data("gate", source_folders={"sglang": "/sgl-workspace/sglang/python"}))
    there = EDIT | {"file": "sglang/a.py"}
    folders.write_step("gate", step_data(edits=[EDIT, there], asserts=[{"file": "sglang/a.py", "contains": "x"}]))
    chain = folders.read()
    for request in (step_request(chain, chain.steps[0]), verify_request(chain, Expected())):
        assert [edit.get("folder") for edit in request["edits"]] == [None, "/sgl-workspace/sglang/python"]
        assert [assertion["folder"] for assertion in request["asserts"]] == ["/sgl-workspace/sglang/python"]


def test_order_counts(folders: Folders) -> None:
    before = folders.read().identity
    folders.write_chain(chain_data("../steps/tile", "gate", "template"))
    assert folders.read().identity != before


def test_a_base_named_by_a_tag_alone_is_refused(folders: Folders) -> None:
    folders.write_chain(chain_data("gate", base={"repository": "vllm/vllm-openai", "tag": "nightly"}))
    text = folders.refusal()
    assert text.startswith("patches/sm121/chain.yaml: base")
    assert "a tag can move" in text


@pytest.mark.parametrize(
    ("step", "key", "rule"),
    [
        ({}, "(whole file)", "at least one of the keys"),
        ({"edits": [EDIT | {"marker": "elsewhere"}]}, "edits/0", "part of the replacement"),
        (
            {"edits": [EDIT | {"marker": "x = 1", "replacement": "x = 1\ny = 2\n"}]},
            "edits/0",
            "must not be a part of the anchor",
        ),
        ({"edits": [EDIT | {"file": "../a.py"}]}, "edits/0/file", "below its folder"),
        ({"edits": [EDIT | {"file": "/etc/passwd"}]}, "edits/0/file", "below its folder"),
        ({"edits": [EDIT | {"count": 0}]}, "edits/0/count", "greater than or equal to 1"),
        ({"edits": [EDIT, EDIT]}, "edits/1/marker", "would count as done"),
        ({"packages": {"install": ["torch"]}}, "packages/install", "is not `name==version`"),
        ({"packages": {"install": ["a[cu13]==1"]}}, "packages/install", "name each part"),
        ({"packages": {}}, "packages", "removes or installs"),
        ({"files": [{"source": "no", "target": "/no"}]}, "files/0/source", "a file in the step's folder"),
        ({"files": [{"source": "no", "target": "relative"}]}, "files/0/target", "match pattern"),
        ({"links": [{"path": "a", "target": "/b"}]}, "links/0/path", "match pattern"),
        ({"links": [{"path": "/a", "target": "b"}]}, "links/0/target", "match pattern"),
        ({"links": [{"path": "/a/../b", "target": "/b"}]}, "links/0/path", "without `..`"),
        ({"links": [{"path": "/a", "target": "/a"}]}, "links/0", "another place"),
        ({"links": [{"path": "/a", "target": "/b"}] * 2}, "(whole file)", "two files or links"),
        ({"debian": [{"name": "iproute2"}]}, "debian/0", "cannot be known"),
        ({"debian": [{"name": "iproute2", "version": "1", "any_version": True}]}, "debian/0", "either a version"),
        ({"debian": [{"name": "iproute2=1", "any_version": True}]}, "debian/0/name", "match pattern"),
        ({"debian": [{"name": "iproute2", "version": "1"}] * 2}, "(whole file)", "twice"),
        ({"asserts": [{"file": "a"}]}, "asserts/0", "exactly one"),
        ({"asserts": [{"file": "a", "absent": "b", "count": 2}]}, "asserts/0", "no count"),
        ({"edits": [EDIT], "base_is_absent": True}, "(whole file)", "tested_against"),
        ({"edit": [EDIT]}, "edit", "not known"),
        (
            {"packages": {"install": ["nvidia-cutlass-dsl==4.8.0", "nvidia-cutlass-dsl-libs-base==4.7.0"]}},
            "packages/install",
            "must have one version",
        ),
    ],
)
def test_a_wrong_step_is_refused_with_file_key_rule_and_way_out(
    folders: Folders, step: dict[str, Any], key: str, rule: str
) -> None:
    folders.write_step("gate", step_data(**step))
    text = folders.refusal()
    assert text.startswith(f"patches/sm121/gate/step.yaml: {key}: ")
    assert rule in text


@pytest.mark.parametrize("reference", ["absent", "../../elsewhere", "../steps/absent"])
def test_a_step_that_is_no_folder_below_patches_is_refused_with_those_that_are(
    folders: Folders, reference: str
) -> None:
    folders.write_chain(chain_data("gate", reference))
    text = folders.refusal()
    assert "steps/1" in text
    assert "../steps/tile" in text


def test_a_step_named_twice_is_refused(folders: Folders) -> None:
    folders.write_chain(chain_data("gate", "../steps/tile", "../steps/tile"))
    assert "stands before" in folders.refusal()


def test_a_base_with_kernels_compiled_ahead_needs_a_step_that_removes_them(folders: Folders) -> None:
    versions = {"vllm": "0.33.0", "flashinfer-jit-cache": "0.7.2"}
    folders.write_chain(chain_data("gate", versions=versions))
    assert "no step removes it" in folders.refusal()
    folders.write_step("gate", step_data(edits=[EDIT], packages={"remove": ["flashinfer-jit-cache"]}))
    assert folders.read().versions == {"vllm": "0.33.0"}


def test_the_patcher_is_sent_whole() -> None:
    files = {path.relative_to(RUNTIME).as_posix() for path in (RUNTIME / "build").glob("*.py")}
    assert set(TOOLS) == files | {"__init__.py"}


@pytest.mark.parametrize("builder", ["buildkit", "classic"])
def test_one_run_a_step_and_its_inputs_alone(folders: Folders, builder: Any) -> None:
    chain = folders.read()
    context = build_context(chain, RUNTIME, builder=builder)
    text = context.dockerfile
    assert text.startswith(f"FROM {chain.description.origin.reference}\n")
    assert text.count("\nRUN ") == len(chain.steps) + 1
    assert text.count("\nCOPY ") == (0 if builder == "buildkit" else len(chain.steps) + 1)
    assert "# syntax" not in text
    for step in chain.steps:
        assert f'LABEL gb10-serving.step.{step.slug}="{step.identity}"' in text
    assert f'LABEL gb10-serving.chain.identity="{finished_identity(chain, Expected())}"' in text
    assert f"verify verify.json --report {VERIFY_REPORT}" in text
    assert text.count("runtime.build check") == 1
    assert {file.path.partition("/")[0] for file in context.files} == {*(step.slug for step in chain.steps), "verify"}
    assert all((file.text is None) != (file.source is None) for file in context.files)


def test_the_first_steps_alone_have_no_verification_and_do_not_depend_on_later_ones(folders: Folders) -> None:
    first = build_context(folders.read(), RUNTIME, until=1)
    assert "verify" not in first.dockerfile
    folders.write_step("template", step_data(asserts=[{"file": "vllm/b.py", "contains": "z"}]))
    assert build_context(folders.read(), RUNTIME, until=1) == first


def test_a_build_goes_on_from_an_image_of_an_earlier_step(folders: Folders) -> None:
    chain = folders.read()
    text = build_context(chain, RUNTIME, start=Start(reference=chain.steps[1].reference, steps=2)).dockerfile
    assert text.startswith(f"FROM gb10-serving/step:{chain.steps[1].identity[:16]}\n")
    assert text.count("\nRUN ") == 2
    with pytest.raises(ValueError, match="no part of a chain of 3 steps"):
        build_context(chain, RUNTIME, until=2, start=Start(reference="x", steps=2))


def test_the_context_is_the_same_for_another_purpose(folders: Folders) -> None:
    before = build_context(folders.read(), RUNTIME)
    folders.write_step("gate", {"purpose": "other", "source": "other", "edits": [EDIT]})
    assert build_context(folders.read(), RUNTIME) == before


def test_what_verify_expects_follows_later_steps(folders: Folders) -> None:
    again = {"file": EDIT["file"], "anchor": "x = 2  # GB10\n", "replacement": "x = 4  # SM121\n", "marker": "# SM121"}
    folders.write_step("template", step_data(edits=[again], packages={"remove": ["b"], "install": ["vllm==0.33.1"]}))
    request = verify_request(folders.read(), Expected(entrypoint=("vllm",), architecture="arm64"))
    assert [edit["marker"] for edit in request["edits"]] == [None, "# SM121"]
    assert request["versions"] == {"vllm": "0.33.1", "nvidia-nccl-cu13": "2.30.7"}
    assert request["absent"] == ["b"]
    assert request["entrypoint"] == {"expected": ["vllm"]}


def test_what_verify_expects_has_every_link_and_the_later_version_of_a_debian_package(folders: Folders) -> None:
    link, other = {"path": "/a", "target": "/b"}, {"path": "/c", "target": "/d"}
    folders.write_step("gate", step_data(links=[link], debian=[{"name": "iproute2", "version": "1"}]))
    later = [{"name": "iproute2", "version": "2"}, {"name": "ethtool", "any_version": True}]
    folders.write_step("template", step_data(links=[other], debian=later))
    request = verify_request(folders.read(), Expected())
    assert request["links"] == [link, other]
    assert [(package["name"], package["version"]) for package in request["debian"]] == [
        ("ethtool", None),
        ("iproute2", "2"),
    ]


@pytest.mark.parametrize("builder", ["buildkit", "classic"])
def test_debian_packages_are_installed_and_their_lists_removed_in_the_layer_of_their_step(
    folders: Folders, builder: Any
) -> None:
    packages = [{"name": "iproute2", "version": "6.1.0-1ubuntu6"}, {"name": "libibverbs1", "any_version": True}]
    folders.write_step("gate", step_data(debian=packages))
    text = build_context(folders.read(), RUNTIME, builder=builder, until=1).dockerfile
    (layer,) = [block for block in text.replace(" \\\n", " ").splitlines() if block.startswith("RUN ")]
    steps = [part.strip() for part in layer.split("&&")]
    assert [step.split()[-1] for step in steps[-5:]] == [
        "update",
        "libibverbs1",
        "clean",
        "-delete",
        f"{RECORDS}/steps/01-gate.json",
    ]
    assert "install --yes --no-install-recommends iproute2=6.1.0-1ubuntu6 libibverbs1" in layer
    assert "/var/lib/apt/lists" in steps[-2]


def test_a_step_without_debian_packages_does_not_run_apt() -> None:
    assert apt_commands([]) == []


def test_pip_resolves_nothing_and_puts_back_what_it_may_not_move() -> None:
    change = {"remove": ["flashinfer-jit-cache"], "install": ["instanttensor==0.1"], "index": "https://x/", "pre": True}
    commands = pip_commands(change, {"nvidia-nccl-cu13": "2.30.7", "instanttensor": "0.1"})
    assert [command[len(PIP) :] for command in commands] == [
        ["uninstall", "--yes", "flashinfer-jit-cache"],
        ["install", "--no-deps", "--pre", "--extra-index-url", "https://x/", "instanttensor==0.1"],
        ["install", "--no-deps", "nvidia-nccl-cu13==2.30.7"],
    ]
    assert pip_commands(None, {}) == []


def test_the_cuda_part_of_the_cutlass_dsl_is_installed_last_and_by_force() -> None:
    names = ["nvidia-cutlass-dsl-libs-cu13", "nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base"]
    change = {"remove": [], "install": [f"{name}==4.8.0" for name in names], "index": None, "pre": False}
    commands = pip_commands(change, dict.fromkeys(names, "4.8.0"))
    assert [command[len(PIP) :] for command in commands] == [
        ["install", "--no-deps", "nvidia-cutlass-dsl==4.8.0", "nvidia-cutlass-dsl-libs-base==4.8.0"],
        ["install", "--no-deps", "--force-reinstall", "nvidia-cutlass-dsl-libs-cu13==4.8.0"],
    ]


def test_a_label_survives_quotes_and_dollars() -> None:
    report = json.dumps({"a": 'say "$HOME"\\n'})
    text = report_label("x:1", report)
    line = text.splitlines()[1].removeprefix("LABEL gb10-serving.verify=")
    assert text.startswith("FROM x:1\n")
    assert json.loads(line.replace("\\$", "$")) == report


def test_the_context_applies_and_verifies_where_it_is_unpacked(folders: Folders, tmp_path: Path) -> None:
    """What the Dockerfile runs is run here, with a folder in place of the base's packages."""
    packages = tmp_path / "packages"
    (packages / "vllm").mkdir(parents=True)
    (packages / "vllm" / "a.py").write_text("x = 1\n")
    (packages / "vllm" / "b.py").write_text("min(1, 2)\n")
    (packages / "vllm-0.33.0.dist-info").mkdir()
    target = tmp_path / "t.jinja"
    folders.write_step("template", step_data(files=[{"source": "t.jinja", "target": str(target)}]))
    names = ("gate", "../steps/tile", "template")
    folders.write_chain(chain_data(*names, packages_folder=str(packages), versions={"vllm": "0.33.0"}))
    chain = folders.read()
    context = build_context(chain, RUNTIME, expected=Expected(entrypoint=("python3",), capability=None))
    for file in context.files:
        path = tmp_path / "context" / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text) if file.text is not None else shutil.copyfile(str(file.source), path)
    calls = [(step.slug, verb) for step in chain.steps for verb in ("check", "apply")]
    for folder, verb in [*calls, ("verify", "verify")]:
        name = "verify.json" if verb == "verify" else "step.json"
        command = [sys.executable, "-B", "-m", "runtime.build", verb, name]
        done = subprocess.run(command, cwd=tmp_path / "context" / folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["ok"]
    assert target.read_text() == "{{ messages }}"
