"""The lab's model: a tiny Qwen3, trained once on this machine until it answers its dialogues word for word."""

import json
import shutil
from pathlib import Path

from lab.commands import Report
from lab.errors import LabError
from lab.image_python import image_python
from lab.locks import exclusive
from ops.places import cache_folder
from spec.architecture import Qwen3
from spec.model import Model

_PATIENCE_SECONDS = 600
_TRAINER = Path(__file__).parent / "train_model.py"
_ENVIRONMENT = {
    "PYTHONPATH": "/opt/vllm",
    "PYTHONDONTWRITEBYTECODE": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "OMP_NUM_THREADS": "1",
}


def model_folder(model: Model) -> Path:
    """Returns where a model of the lab is, or will be once `ensure_model` has made it."""
    return cache_folder() / "models" / str(model.revision)


def ensure_model(name: str, model: Model, tree: Path, image_archive: Path, report: Report) -> Path:
    """Makes a model of the lab, unless it is there.

    Args:
        name: its name in the catalogue.
        model: its entry.
        tree: vLLM's tree (lab/vllm_tree.py); its torch and transformers train the model.
        image_archive: the image whose Python runs the trainer; read only if the model is made.
        report: receives progress lines.

    Returns:
        A Hugging Face folder, with `expected.json`: what plain transformers answers to each dialogue, and how it
        continues two plain texts.

    Raises:
        LabError: the recipe cannot be served by up to four ranks, or the trained model does not know its dialogues.
    """
    folder = model_folder(model)
    if folder.exists():
        return folder
    _require_trainable(name, model)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(folder.with_suffix(".lock"), f"make the model {name}", _PATIENCE_SECONDS):
        if not folder.exists():
            _make(name, model.recipe, folder, tree, image_archive, report)
    return folder


def _require_trainable(name: str, model: Model) -> None:
    """Makes sure that the trainer knows the architecture and that one, two and four ranks can share every shape."""
    architecture = model.architecture
    if model.trained is None or not isinstance(architecture, Qwen3):
        raise LabError(
            f"make the model {name}",
            "the lab trains architectures of type qwen3 that have a key `trained`",
            f"Use another model, or change catalog/models/{name}.yaml.",
        )
    shapes = ("hidden_size", "intermediate_size", "attention_heads", "key_value_heads")
    wrong = [f"{shape} {getattr(architecture, shape)}" for shape in shapes if getattr(architecture, shape) % 4]
    if wrong:
        raise LabError(
            f"make the model {name}",
            f"{', '.join(wrong)}: not a multiple of 4, so four ranks cannot share it",
            f"Change catalog/models/{name}.yaml.",
        )


def _make(name: str, recipe: dict[str, object], folder: Path, tree: Path, image_archive: Path, report: Report) -> None:
    python = image_python(image_archive, report)
    building = folder.with_suffix(".building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    (building / "recipe.json").write_text(json.dumps(recipe, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    report(f"train the model {name} (once, about a quarter of a minute)")
    printed = python.run(
        [f"/opt/lab/{_TRAINER.name}", "/opt/model/recipe.json", "/opt/model"],
        what=f"train the model {name}",
        readable={"/opt/vllm": tree, "/opt/lab": _TRAINER.parent},
        writable={"/opt/model": building},
        environment=_ENVIRONMENT,
        timeout_seconds=_PATIENCE_SECONDS,
    )
    report(f"model {name}: {printed.strip()}")
    for path in building.iterdir():
        path.chmod(0o644)
    building.rename(folder)
