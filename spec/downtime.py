"""How long a group is away while it restarts, from what the sources measured."""

from collections.abc import Mapping

from spec.base import Strict
from spec.reference import Reference, ReferenceFile
from spec.release import GroupPlan, Release


class Downtime(Strict):
    """From the stop of the old head to the first right answer of the new one.

    Attributes:
        low_seconds, high_seconds: what was measured until the API was up, and how long the old rank may take to end.
        sources: names of the references.
    """

    low_seconds: int
    high_seconds: int
    sources: tuple[str, ...]


def expected_downtime(release: Release, group: GroupPlan, references: Mapping[str, ReferenceFile]) -> Downtime | None:
    """Returns how long a start of this model on as many nodes took; none where nobody measured it.

    Args:
        release: what starts.
        group: of it.
        references: the files of catalog/references by their names.
    """
    measured = {
        f"{file}/{name}": reference.measured.ready_seconds
        for file, content in references.items()
        for name, reference in content.references.items()
        if _is_alike(reference, release, group)
    }
    ends = [end for figure in measured.values() if figure is not None for end in _ends(figure)]
    if not ends:
        return None
    return Downtime(
        low_seconds=round(min(ends)),
        high_seconds=round(max(ends)) + release.stop_grace_seconds,
        sources=tuple(name for name, figure in measured.items() if figure is not None),
    )


def _is_alike(reference: Reference, release: Release, group: GroupPlan) -> bool:
    settings = reference.settings
    return reference.outcome == "served" and settings.model == release.model_name and settings.nodes == len(group.ranks)


def _ends(figure: float | tuple[float, float]) -> tuple[float, ...]:
    return figure if isinstance(figure, tuple) else (figure,)
