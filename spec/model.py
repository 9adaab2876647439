"""A model of the catalogue: where its files come from, what they are, and what it must answer."""

from typing import Literal

from pydantic import Field, model_validator

from spec.architecture import Architecture, Checkpoint, Dflash2, Licence, Source
from spec.base import Strict, content_hash


class Dialogue(Strict):
    """One question with the answer that the model must give."""

    prompt: str
    answer: str


class Training(Strict):
    """How the lab makes a tiny model of an architecture: trained from a fixed seed until it answers its dialogues.

    Attributes:
        seed: of the weights and of the order of training.
        steps: most training steps; training ends earlier once every answer is right with a margin.
        dialogues: what is learned, word for word.
        recipe_version: raised when the trainer in lab/ changes what it makes from the same recipe.
    """

    seed: int
    steps: int = Field(gt=0)
    dialogues: tuple[Dialogue, ...] = Field(min_length=1)
    recipe_version: int = 1


class Probe(Strict):
    """A question that a deployment must answer right before it counts as ready.

    Attributes:
        prompt: what the user says, through the chat endpoint at temperature 0.
        answer: what must come back.
        match: `exact` compares the whole text, `contains` looks for it.
        tokens: most tokens to generate.
    """

    prompt: str
    answer: str
    match: Literal["exact", "contains"] = "contains"
    tokens: int = Field(default=64, gt=0)


class Model(Strict):
    """A model of the catalogue (catalog/models/NAME.yaml).

    Attributes:
        served_name: the name under which clients ask for it; none for a drafter, which nobody asks for.
        architecture: what it is made of.
        source: where the files of a published checkpoint come from.
        manifest: hash of its files, as `./fleet weights manifest` prints it; verified on every node where it is given,
            so that a preview, which sees no files, pins their content.
        trained: how the lab makes the files instead.
        licence: of published weights.
        checkpoint: the published files.
        drafters: names of catalogue models that can draft for it.
        probes: what it must answer; none for a drafter.
    """

    served_name: str | None = None
    architecture: Architecture
    source: Source | None = None
    manifest: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    trained: Training | None = None
    licence: Licence | None = None
    checkpoint: Checkpoint | None = None
    drafters: tuple[str, ...] = ()
    probes: tuple[Probe, ...] = ()

    @model_validator(mode="after")
    def _is_published_or_trained(self) -> "Model":
        published = (self.source, self.licence, self.checkpoint)
        if (self.trained is None) != all(published) or (self.trained and any(published)):
            raise ValueError("a published model has source, licence and checkpoint; one of the lab has trained")
        return self

    @model_validator(mode="after")
    def _what_is_trained_has_no_manifest(self) -> "Model":
        if self.trained and self.manifest:
            raise ValueError("what the lab trains differs from machine to machine: a manifest cannot be pinned for it")
        return self

    @model_validator(mode="after")
    def _only_a_drafter_is_silent(self) -> "Model":
        silent = isinstance(self.architecture, Dflash2)
        if silent != (self.served_name is None) or silent != (not self.probes):
            raise ValueError("a model has a served_name and probes, a drafter has neither")
        return self

    @property
    def recipe(self) -> dict[str, object]:
        """All that decides what the lab trains, as plain data."""
        return {
            "architecture": self.architecture.model_dump(mode="json"),
            "trained": self.trained.model_dump(mode="json") if self.trained else None,
        }

    @property
    def revision(self) -> str | None:
        """Identity of the weights: the repository's commit, or the recipe's hash; none if nobody names one."""
        return self.source.revision if self.source else content_hash(self.recipe)
