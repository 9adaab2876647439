"""Figures that say how they came about: steps of a calculation, ranges where sources disagree, bytes for people."""

from pydantic import model_validator

from spec.base import Strict

GIB = 1 << 30


def ceil_div(dividend: int, divisor: int) -> int:
    """Divides and rounds up."""
    return -(-dividend // divisor)


def round_up(value: int, step: int) -> int:
    """Returns the smallest multiple of `step` that is not less than `value`."""
    return step * ceil_div(value, step)


def gib(size_bytes: int) -> str:
    """Writes bytes as GiB with two digits, as vLLM's log does."""
    return f"{size_bytes / GIB:.2f} GiB"


class Step(Strict):
    """One line of a calculation.

    Attributes:
        quantity: what is calculated.
        formula: how, in symbols.
        substituted: the same with the numbers of this case.
        value: the result.
        unit: what the result counts.
    """

    quantity: str
    formula: str
    substituted: str
    value: int | float
    unit: str

    def __str__(self) -> str:
        shown = f"{self.value:,}" if isinstance(self.value, int) else f"{self.value:,.2f}"
        return f"{self.quantity} = {self.formula} = {self.substituted} = {shown} {self.unit}"


class Range(Strict):
    """From where to where a figure in bytes lies; both ends are equal where it is known exactly.

    Attributes:
        low, high: the ends, both possible.
        source: where they come from, and what disagrees.
    """

    low: int
    high: int
    source: str

    @model_validator(mode="after")
    def _ends_are_in_order(self) -> "Range":
        if self.low > self.high:
            raise ValueError(f"the low end {self.low} lies above the high end {self.high}")
        return self

    @property
    def is_exact(self) -> bool:
        """Whether the figure is known exactly."""
        return self.low == self.high

    def __str__(self) -> str:
        return gib(self.low) if self.is_exact else f"{self.low / GIB:.2f} to {self.high / GIB:.2f} GiB"


def exactly(size_bytes: int, source: str) -> Range:
    """A figure that is known exactly."""
    return Range(low=size_bytes, high=size_bytes, source=source)


def total(ranges: tuple[Range, ...], source: str) -> Range:
    """Adds ranges end by end."""
    return Range(low=sum(part.low for part in ranges), high=sum(part.high for part in ranges), source=source)
