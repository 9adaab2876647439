"""What a rule is: one small function with a stable id that looks at a deployment and says what is wrong with it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from spec.errors import Problem
from spec.kv_cache import KvCachePlan
from spec.memory import MemoryPlan
from spec.situation import Situation


@dataclass(frozen=True)
class Estimate:
    """What the planner says of one group; none where it knows no figures."""

    memory: MemoryPlan | None
    kv_cache: KvCachePlan | None


Estimates = dict[str, Estimate]
"""The estimate of each group by its name; empty before anything can be estimated."""

Check = Callable[[Situation, Estimates], Iterable[Problem]]
"""Looks at a deployment and at the estimate of each of its groups; pure."""


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        id: stable name, by which a warning is acknowledged.
        severity: `refuse` stops the plan, `warn` can be acknowledged in the stack file with a reason.
        check: the function; its docstring says what must hold and, behind `Source:`, who says so.
    """

    id: str
    severity: Literal["refuse", "warn"]
    check: Check

    @property
    def summary(self) -> str:
        """The first line of the docstring: what must hold."""
        return (self.check.__doc__ or "").strip().splitlines()[0]

    @property
    def source(self) -> str:
        """Who says so: what the docstring has behind `Source:`."""
        return " ".join((self.check.__doc__ or "").partition("Source:")[2].split())


def refuse(check: Check) -> Rule:
    """Makes a rule that stops the plan; its id is the function's name with dashes."""
    return Rule(_id_of(check), "refuse", check)


def warn(check: Check) -> Rule:
    """Makes a rule that warns; its id is the function's name with dashes."""
    return Rule(_id_of(check), "warn", check)


def _id_of(check: Check) -> str:
    return check.__name__.replace("_", "-")  # type: ignore[attr-defined]
