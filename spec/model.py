"""A model of the catalogue: where its files come from and what it must answer."""

from typing import Literal

from pydantic import Field

from spec.base import Strict, content_hash


class Dialogue(Strict):
    """One question with the answer that the model must give."""

    prompt: str
    answer: str


class TinyQwen3(Strict):
    """A tiny Qwen3 that the lab trains from a fixed seed until it answers its dialogues; the recipe is its identity.

    Attributes:
        seed: of the weights and of the order of training.
        layers, hidden_size, intermediate_size, attention_heads, key_value_heads, head_dimension: the architecture.
        positions: longest context.
        steps: most training steps; training ends earlier once every answer is right with a margin.
        dialogues: what is learned, word for word.
        recipe_version: raised when the trainer in lab/ changes what it makes from the same recipe.
    """

    seed: int
    layers: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    attention_heads: int = Field(gt=0)
    key_value_heads: int = Field(gt=0)
    head_dimension: int = Field(gt=0)
    positions: int = Field(gt=0)
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
        served_name: the name under which clients ask for it.
        attention_heads, key_value_heads: what tensor parallelism must divide.
        tiny_qwen3: recipe of a model that the lab makes.
        probes: what it must answer.
    """

    served_name: str
    attention_heads: int = Field(gt=0)
    key_value_heads: int = Field(gt=0)
    tiny_qwen3: TinyQwen3
    probes: tuple[Probe, ...] = Field(min_length=1)

    @property
    def revision(self) -> str:
        """Identity of the weights: the hash of the recipe that makes them."""
        return content_hash(self.tiny_qwen3.model_dump(mode="json"))
