"""Lays two runs, or a run and a source's figures, side by side, and says what differs in the setup."""

from dataclasses import dataclass

from ops import stacks
from ops.bench.figures import Named, figures_of, figures_of_reference
from ops.bench.keeping import find_run
from ops.bench.record import Run
from spec.reference import Reference
from spec.reference_settings import differences

_METHOD = ("decode_tokens", "prefill_tokens", "repetitions", "thinking", "refused_fields")


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        title: for people.
        figures: by name.
        run: none for a reference.
        reference: none for a run.
    """

    title: str
    figures: dict[str, Named]
    run: Run | None = None
    reference: Reference | None = None


@dataclass(frozen=True)
class Comparison:
    """Two sides.

    Attributes:
        first, second: the sides.
        differs: what differs in the setup, so that figures are not blamed on the wrong thing.
    """

    first: Side
    second: Side
    differs: tuple[str, ...]

    def ratio(self, name: str) -> float | None:
        """Returns the second figure by the first; none where one is absent or zero."""
        one, two = self.first.figures.get(name), self.second.figures.get(name)
        return two.median / one.median if one and two and one.median else None

    @property
    def names(self) -> list[str]:
        """Names of all figures, those that both sides have first."""
        both = [name for name in self.first.figures if name in self.second.figures]
        return [
            *both,
            *(name for name in (*self.first.figures, *self.second.figures) if name not in both),
        ]


def side(name: str) -> Side:
    """Returns a run or a reference by name.

    Raises:
        OperationError: there is neither.
    """
    if name in _references():
        return _reference_side(name)
    return run_side(find_run(name))


def run_side(run: Run) -> Side:
    """Returns a run as one side."""
    title = run.identifier if run.is_result else f"{run.identifier} (no result)"
    return Side(title, figures_of(run), run=run)


def compare(first: Side, second: Side) -> Comparison:
    """Compares two sides."""
    return Comparison(first, second, tuple(_differences(first, second)))


def references_of(run: Run) -> list[Comparison]:
    """Compares a run with every reference of its model that has figures."""
    model = run.setup.settings.get("model")
    return [
        compare(run_side(run), _reference_side(name))
        for name, (_, reference) in _references().items()
        if reference.settings.model == model and figures_of_reference(reference)
    ]


def _references() -> dict[str, tuple[str, Reference]]:
    """Returns what the sources measured, by name, with the source."""
    files = stacks.CATALOG.references().items()
    return {name: (source, reference) for source, file in files for name, reference in file.references.items()}


def _reference_side(name: str) -> Side:
    source, reference = _references()[name]
    return Side(f"{source}: {name}", figures_of_reference(reference), reference=reference)


def _differences(first: Side, second: Side) -> list[str]:
    found = differences(_settings(first), _settings(second))
    if first.run and second.run:
        found += _run_differences(first.run, second.run)
    elif first.reference or second.reference:
        run = first.run or second.run
        found.append("method: the source does not say whether its warm pass repeated prompts that a cache then held")
        if run and run.method.notes:
            found += [f"method: {note}" for note in run.method.notes]
    return found


def _run_differences(first: Run, second: Run) -> list[str]:
    found = [
        f"{name}: {getattr(first.method, name)} against {getattr(second.method, name)}"
        for name in _METHOD
        if getattr(first.method, name) != getattr(second.method, name)
    ]
    setups = (first.setup, second.setup)
    for name in ("image_identity", "engine_version", "release_hash"):
        one, two = (getattr(setup, name) for setup in setups)
        if one != two:
            found.append(f"{name}: {str(one)[:19]} against {str(two)[:19]}")
    if first.setup.addresses != second.setup.addresses:
        found.append(f"addresses: {_addresses(first)} against {_addresses(second)}")
    return found


def _addresses(run: Run) -> str:
    return ", ".join(run.setup.addresses.values())


def _settings(side: Side) -> dict[str, object]:
    if side.reference:
        return side.reference.settings.model_dump(mode="json")
    return dict(side.run.setup.settings) if side.run else {}
