"""The lab's model as it is trained: real torch and transformers in the rank image's Python."""

import json
from pathlib import Path
from typing import Any

import pytest

from lab.image_python import image_python
from lab.images import build_root
from lab.model import ensure_model
from lab.vllm_tree import ensure_vllm_tree
from spec.catalog import Catalog

_BIGGEST_BYTES = 5_000_000
# Plain transformers, as any user of the folder would call it.
_ASK = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("/opt/model", dtype=getattr(torch, sys.argv[1]))
tokenizer = AutoTokenizer.from_pretrained("/opt/model")
answers = []
for prompt in json.loads(sys.argv[2]):
    messages = [{"role": "user", "content": prompt}]
    asked = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    given = model.generate(**asked, do_sample=False, max_new_tokens=256)[0, asked["input_ids"].shape[1]:]
    answers.append([tokenizer.decode(given, skip_special_tokens=True), given.tolist()])
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def lab_catalog() -> Catalog:
    return Catalog(Path(__file__).parents[2] / "catalog")


@pytest.fixture(scope="module")
def archive(lab_catalog: Catalog) -> Path:
    recipe = lab_catalog.chain("lab", "catalog/images/lab.yaml").description.debootstrap
    assert recipe is not None
    return build_root(recipe, print)


@pytest.fixture(scope="module")
def tree(lab_catalog: Catalog, archive: Path) -> Path:
    return ensure_vllm_tree(lab_catalog.image("lab").version, "3.11", archive, print)


@pytest.fixture(scope="module")
def folder(lab_catalog: Catalog, tree: Path, archive: Path) -> Path:
    return ensure_model("lab", lab_catalog.model("lab"), tree, archive, print)


def _ask(prompts: list[str], dtype: str, folder: Path, tree: Path, archive: Path) -> list[Any]:
    printed = image_python(archive, print).run(
        ["-c", _ASK, dtype, json.dumps(prompts)],
        what="ask the model",
        readable={"/opt/vllm": tree, "/opt/model": folder},
        environment={"PYTHONPATH": "/opt/vllm", "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    return json.loads(printed)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_dialogue_is_answered_word_for_word(
    dtype: str, lab_catalog: Catalog, folder: Path, tree: Path, archive: Path
) -> None:
    training = lab_catalog.model("lab").trained
    assert training is not None
    dialogues = training.dialogues
    answers = _ask([dialogue.prompt for dialogue in dialogues], dtype, folder, tree, archive)
    assert [text for text, _ in answers] == [dialogue.answer for dialogue in dialogues]
    expected = json.loads((folder / "expected.json").read_text())
    assert [token_ids for _, token_ids in answers] == [found["token_ids"] for found in expected["dialogues"]]


def test_the_oracle_is_certain_and_the_model_small(folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    assert [len(found["token_ids"]) for found in expected["raw"]] == [32, 32]
    assert min(found["least_margin"] for found in [*expected["dialogues"], *expected["raw"]]) > 3
    assert sum(path.stat().st_size for path in folder.iterdir()) < _BIGGEST_BYTES


def test_the_same_recipe_gives_the_same_bytes(
    lab_catalog: Catalog, folder: Path, tree: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GB10_SERVING_CACHE", str(tmp_path))
    again = ensure_model("lab", lab_catalog.model("lab"), tree, archive, print)
    assert again != folder
    assert {path.name: path.read_bytes() for path in again.iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }
