"""One thing that was checked, and what a list of them comes to."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Outcome = Literal["passed", "failed", "unknown", "noted"]


@dataclass(frozen=True)
class Check:
    """One thing that was checked.

    Attributes:
        subject: what was looked at.
        outcome: unknown where it could not be seen, noted where there is no rule about it.
        found: what is there.
        expected: what must be there.
        way_out: what to do about a failure.
    """

    subject: str
    outcome: Outcome
    found: Any
    expected: Any = None
    way_out: str | None = None

    def __str__(self) -> str:
        text = f"{self.subject}: {self.outcome}: {self.found}"
        if self.outcome != "failed":
            return text
        return f"{text}, must be: {self.expected}\n    Way out: {self.way_out}"

    def as_json(self) -> dict[str, Any]:
        """Plain data, without what is empty."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def passed(subject: str, found: Any) -> Check:
    """Something is as it must be."""
    return Check(subject, "passed", found)


def failed(subject: str, found: Any, expected: Any, way_out: str) -> Check:
    """Something is not as it must be."""
    return Check(subject, "failed", found, expected, way_out)
