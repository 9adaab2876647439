"""The figures of a run by name, and the sources' figures under the same names."""

from collections.abc import Iterator
from dataclasses import dataclass

from ops.bench.record import Run
from ops.bench.statistics import Spread
from spec.reference import Figure, Reference

_REFERENCE_WORKLOADS = {"structured": "counting"}
_STREAMS = {"six streams": 6, "eighteen streams over three pools": 18}


@dataclass(frozen=True)
class Named:
    """One figure.

    Attributes:
        name: such as `decode, prose`.
        unit: of it.
        median, low, high: equal where only one number is known.
        detail: what it was measured at, where two runs may differ in it.
    """

    name: str
    unit: str
    median: float
    low: float
    high: float
    detail: str | None = None

    @property
    def shown(self) -> str:
        """The median, and the range where there is one."""
        if self.low == self.high:
            return _number(self.median)
        return f"{_number(self.median)} ({_number(self.low)} to {_number(self.high)})"


def figures_of(run: Run) -> dict[str, Named]:
    """Returns the figures that a run reports, by name; none of a run that is no result."""
    return {figure.name: figure for figure in _of_run(run)} if run.is_result else {}


def figures_of_reference(reference: Reference) -> dict[str, Named]:
    """Returns a source's figures by the names that a run has for them."""
    return {figure.name: figure for figure in _of_reference(reference)}


def _of_run(run: Run) -> Iterator[Named]:
    reported = run.reported
    for workload, decode in reported.decode.items():
        if decode.tokens_per_second:
            yield _named(f"decode, {workload}", "tokens/s", decode.tokens_per_second)
    for workload, decode in reported.decode.items():
        if decode.reasoning_tokens.high:
            yield _named(f"reasoning, {workload}", "tokens", decode.reasoning_tokens, f"of {decode.tokens}")
        if decode.acceptance_length:
            yield _single(f"acceptance length, {workload}", "tokens", decode.acceptance_length)
        if decode.acceptance_percent:
            yield _single(f"acceptance, {workload}", "%", decode.acceptance_percent)
    if reported.prefill:
        prefill = reported.prefill
        detail = f"{prefill.prompt_tokens:,} tokens"
        yield _named("prefill", "tokens/s", prefill.tokens_per_second, detail)
        if len([name for name in run.setup.addresses if name != "router"]) > 1:
            yield _single("prefill, all members", "tokens/s", prefill.total_tokens_per_second, detail)
        yield _named("time to first token, long prompt", "s", prefill.time_to_first_token_seconds, detail)
    for aggregate in reported.aggregates:
        streams = f"{aggregate.streams} stream{'s' if aggregate.streams != 1 else ''}"
        yield _single(f"aggregate, {streams}", "tokens/s", aggregate.tokens_per_second)
        if aggregate.stream_tokens_per_second:
            yield _named(f"each of {streams}", "tokens/s", aggregate.stream_tokens_per_second)
        yield _named(f"time to first token, {streams}", "s", aggregate.time_to_first_token_seconds)


def _of_reference(reference: Reference) -> Iterator[Named]:
    measured = reference.measured
    for words, figure in measured.decode.items():
        yield _source(f"decode, {_REFERENCE_WORKLOADS.get(words, words)}", "tokens/s", figure)
    for words, figure in measured.acceptance_percent.items():
        yield _source(f"acceptance, {_REFERENCE_WORKLOADS.get(words, words)}", "%", figure)
    for words, figure in measured.prefill.items():
        name = {"warm": "prefill", "all three pools": "prefill, all members"}.get(words, f"prefill, {words}")
        yield _source(name, "tokens/s", figure)
    for words, figure in measured.aggregate.items():
        name = f"aggregate, {_STREAMS[words]} streams" if words in _STREAMS else f"aggregate, {words}"
        yield _source(name, "tokens/s", figure)
    for words, figure in measured.accepted_tokens.items():
        yield _source(f"acceptance length, {words}", "tokens", figure)


def _named(name: str, unit: str, spread: Spread, detail: str | None = None) -> Named:
    return Named(name, unit, spread.median, spread.low, spread.high, detail)


def _single(name: str, unit: str, value: float, detail: str | None = None) -> Named:
    return Named(name, unit, value, value, value, detail)


def _source(name: str, unit: str, figure: Figure) -> Named:
    low, high = figure if isinstance(figure, tuple) else (figure, figure)
    return Named(name, unit, (low + high) / 2, low, high)


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"
