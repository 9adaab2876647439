"""What is known of a failure that ranks show in their last lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from ops.places import PROJECT
from spec.catalog import Catalog
from spec.failures import Failure, recognise


@dataclass(frozen=True)
class LastWords:
    """What one rank said last.

    Attributes:
        rank: for people, such as `rank 0 (head) on lab-1`.
        lines: of its output, oldest first.
        exit_code: of its container; none while it runs.
    """

    rank: str
    lines: Sequence[str]
    exit_code: int | None = None


@cache
def known_failures() -> dict[str, Failure]:
    """Returns catalog/failures/, read once."""
    return Catalog(PROJECT / "catalog").failures()


def diagnosis(words: Sequence[LastWords]) -> str | None:
    """Returns cause and way out of the failure that explains best what ranks said, or nothing where none is known.

    The rank that ended first is often not the one that knows why: a cause on another rank explains a consequence here.

    Args:
        words: of the ranks, the one that ended or failed first.
    """
    found = [
        (recognised.rank, position, said.rank, recognised)
        for position, said in enumerate(words)
        if (recognised := recognise(known_failures(), said.lines, said.exit_code))
    ]
    if not found:
        return None
    _, position, rank, recognised = min(found, key=lambda entry: entry[:2])
    return f"{recognised}" + (f"\n    Said by {rank}" if position else "")
