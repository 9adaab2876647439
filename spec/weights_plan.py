"""From the choice of a source to the plan of a model's weights: folders, identity and what must be among the files."""

from typing import Literal

from spec.connection import connection_to
from spec.model import Model
from spec.release import WeightsPlan, WeightsSource
from spec.situation import Situation
from spec.weights import (
    FromController,
    FromHuggingFace,
    FromNode,
    FromShare,
    WeightsChoice,
    layout_of,
    path_in_container,
)


def weights_plan(situation: Situation, name: str, model: Model, mounted: str) -> WeightsPlan:
    """Returns the plan of a model or drafter whose revision is known."""
    choice = situation.weights_choice(name)
    storage = situation.cluster.storage_folder
    layout = layout_of(choice)
    identity = (model.manifest or str(model.revision))[:16]
    place = f"{storage}/weights/{name}/{identity}{'-hub' if layout == 'huggingface' else ''}"
    return WeightsPlan(
        name=name,
        revision=str(model.revision),
        repository=model.source.repository if model.source else None,
        manifest=model.manifest,
        layout=layout,
        size_bytes=model.checkpoint.size_bytes if model.checkpoint else None,
        requires=_requires(situation, model),
        required_files=_required_files(situation, mounted, choice, model),
        source=_source(situation, choice, model),
        folder=choice.folder if isinstance(choice, FromShare) else place,
        receipt=f"{place}{'-nfs' if isinstance(choice, FromShare) else ''}.receipt.json",
        target=mounted,
        path=path_in_container(choice, model, mounted),
    )


def _requires(situation: Situation, model: Model) -> tuple[Literal["config", "tokenizer", "chat_template"], ...]:
    """A drafter has the tokenizer of its model; a job asks no chat endpoint, and a flag may name a template."""
    if model.served_name is None:
        return ("config",)
    named = situation.config.engine.other
    chats = situation.config.executor != "external_launcher" and "chat_template" not in named
    return ("config", *(() if "tokenizer" in named else ("tokenizer",)), *(("chat_template",) if chats else ()))


def _required_files(situation: Situation, mounted: str, choice: WeightsChoice, model: Model) -> tuple[str, ...]:
    """Returns what the stack file names below the folder of these weights, such as a chat template."""
    prefix = f"{path_in_container(choice, model, mounted)}/"
    values = (value for value in situation.config.engine.other.values() if isinstance(value, str))
    return tuple(sorted({value.removeprefix(prefix) for value in values if value.startswith(prefix)}))


def _source(situation: Situation, choice: WeightsChoice, model: Model) -> WeightsSource:
    if isinstance(choice, FromController):
        return WeightsSource(kind="controller", folder=choice.folder or f"models/{model.revision}")
    if isinstance(choice, FromShare):
        return WeightsSource(kind="nfs", folder=choice.folder, export=choice.export)
    cluster, rail = situation.cluster, situation.config.fabric.rails[0]
    node = cluster.nodes[choice.node]
    found = WeightsSource(
        kind=choice.kind,
        folder=choice.folder if isinstance(choice, FromNode) else f"{cluster.storage_folder}/hub",
        connection=connection_to(cluster, choice.node),
        address=node.rails[min(rail, len(node.rails) - 1)].address,
        switch=node.switch,
    )
    if isinstance(choice, FromHuggingFace):
        return found.model_copy(update={"python": choice.python, "endpoint": choice.endpoint})
    return found
