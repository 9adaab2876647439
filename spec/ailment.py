"""What may be wrong with a node, as data: why it matters, who has seen it, and what cures it."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, RootModel

from spec.base import Strict

Severity = Literal["error", "warning", "note"]


class Ailment(Strict):
    """One thing that may be wrong (an entry of catalog/doctor/*.yaml).

    Attributes:
        severity: an `error` keeps a deployment from working, a `warning` makes it fail or slow some day, a `note` is
            good to know.
        why: it matters; `{name}` stands for a value that was found.
        source: who says so.
        cure: what to run or write, as exactly as can be said.
    """

    severity: Severity
    why: str
    source: str
    cure: str


AilmentId = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]


class AilmentFile(RootModel[dict[AilmentId, Ailment]]):
    """The ailments of one area, by id."""

    model_config = ConfigDict(frozen=True)
