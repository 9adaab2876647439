"""Known failures: what output of vLLM, NCCL, Gloo, driver and kernel means, and which line tells the cause."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, RootModel, model_validator

from spec.base import Strict

_TELLS = ("cause", "symptom", "consequence")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _checked_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None
    return text


def _sample(value: Any) -> Any:
    return {"lines": (value,)} if isinstance(value, str) else value


Pattern = Annotated[str, BeforeValidator(_checked_pattern)]
Signature = Annotated[tuple[Pattern, ...], BeforeValidator(_listed), Field(min_length=1)]


class Sample(Strict):
    """Output in which a failure was seen; one line may stand for itself.

    Attributes:
        lines: in their order.
        exit_code: of the rank, where that is what tells.
    """

    lines: tuple[str, ...]
    exit_code: int | None = None


class Failure(Strict):
    """One known failure (an entry of catalog/failures/*.yaml).

    Attributes:
        tells: what its output is: the `cause` itself, a `symptom` that several causes share, or a `consequence` that
            every rank shows once another has failed.
        signatures: regular expressions, each for one line; those of a list must all be found, in any order.
        exit_codes: of the rank, each a signature by itself.
        cause, cure: for people.
        source: who has seen it.
        samples: output that it must recognise.
    """

    tells: Literal["cause", "symptom", "consequence"]
    signatures: tuple[Signature, ...] = ()
    exit_codes: tuple[int, ...] = ()
    cause: str
    cure: str
    source: str
    samples: tuple[Annotated[Sample, BeforeValidator(_sample)], ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _can_be_recognised(self) -> "Failure":
        if not self.signatures and not self.exit_codes:
            raise ValueError("a failure needs a signature or an exit code by which it is recognised")
        return self


FailureId = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]


class FailureFile(RootModel[dict[FailureId, Failure]]):
    """The failures of one area, by id (catalog/failures/AREA.yaml)."""

    model_config = ConfigDict(frozen=True)


@dataclass(frozen=True)
class Recognised:
    """A known failure in a rank's output.

    Attributes:
        id: of the failure.
        failure: what is known of it.
        line: the line that tells it first; none where the exit code does.
    """

    id: str
    failure: Failure
    line: str | None

    @property
    def rank(self) -> int:
        """How near it is to the cause: 0 is the cause itself."""
        return _TELLS.index(self.failure.tells)

    def __str__(self) -> str:
        seen = f"\n    Seen in: {self.line.strip()}" if self.line else ""
        return f"Known failure {self.id}: {self.failure.cause}\n    Way out: {self.failure.cure}{seen}"


def recognise(failures: Mapping[str, Failure], lines: Sequence[str], exit_code: int | None = None) -> Recognised | None:
    """Returns the failure that explains a rank's last lines best, or none.

    A cause is preferred to a symptom and a symptom to a consequence; then what more lines agree on; then what was said
    first, since what fails later mostly fails because of it.

    Args:
        failures: by id.
        lines: of output, oldest first.
        exit_code: of the rank, where it has ended.
    """
    plain = [_COLOURS.sub("", line) for line in lines]
    found = [
        (_TELLS.index(failure.tells), -patterns, position, key)
        for key, failure in failures.items()
        for patterns, position in _places(failure, plain, exit_code)
    ]
    if not found:
        return None
    _, _, position, key = min(found)
    return Recognised(key, failures[key], plain[position] if position < len(plain) else None)


def _places(failure: Failure, lines: Sequence[str], exit_code: int | None) -> Iterator[tuple[int, int]]:
    """Yields for each signature that is there how many patterns agree, and at which line the first is found."""
    for signature in failure.signatures:
        where = [place for pattern in signature if (place := _first(pattern, lines)) is not None]
        if len(where) == len(signature):
            yield len(signature), min(where)
    if exit_code in failure.exit_codes:
        yield 1, len(lines)  # after everything that was said


def _first(pattern: str, lines: Sequence[str]) -> int | None:
    return next((number for number, line in enumerate(lines) if _compiled(pattern).search(line)), None)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
