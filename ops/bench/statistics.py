"""Median and range of what was measured."""

import statistics
from collections.abc import Iterable

from spec.base import Strict


class Spread(Strict):
    """Several measurements of one thing.

    Attributes:
        median, low, high: of them.
        count: how many there are.
    """

    median: float
    low: float
    high: float
    count: int


def spread(values: Iterable[float | None]) -> Spread | None:
    """Returns median and range, leaving out what could not be measured; none if nothing could."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(median=statistics.median(known), low=min(known), high=max(known), count=len(known))
