"""Runs and comparisons as Markdown, which people read in a terminal and paste into an issue."""

from collections.abc import Iterable, Sequence

from ops.bench.comparing import Comparison
from ops.bench.figures import Named, figures_of
from ops.bench.record import NodeUse, Quality, Run, Tried

_GIB = 1 << 30
_MB = 1_000_000


def run_table(run: Run) -> str:
    """Returns a run as Markdown: what, figures, nodes, quality, and what makes it doubtful."""
    return "\n".join(
        [
            f"# {run.identifier}",
            "",
            *_head(run),
            "",
            *_faults(run),
            *(_figures(run) if run.is_result else ()),
            *_nodes(run),
            *(_quality(run.quality) if run.quality else ()),
            *_doubts(run),
        ]
    )


def comparison_table(comparison: Comparison) -> str:
    """Returns a comparison as Markdown, with what differs in the setup."""
    rows = []
    for name in comparison.names:
        one, two = comparison.first.figures.get(name), comparison.second.figures.get(name)
        ratio = comparison.ratio(name)
        rows.append((name, _cell(one), _cell(two), f"{ratio:.2f}" if ratio else "", _unit(one, two)))
    lines = [
        f"# {comparison.second.title} against {comparison.first.title}",
        "",
        *markdown(("figure", comparison.first.title, comparison.second.title, "ratio", "unit"), rows),
        "",
        "What differs in the setup:" if comparison.differs else "Nothing known differs in the setup.",
        *(f"- {text}" for text in comparison.differs),
    ]
    verdicts = [
        f"- {side.title}, in the source's words: {side.reference.verdict}"
        for side in (comparison.first, comparison.second)
        if side.reference and side.reference.verdict
    ]
    return "\n".join([*lines, *verdicts])


def markdown(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns a Markdown table whose columns are aligned for reading as plain text, too."""
    table = [tuple(heading), *(tuple(row) for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in table
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def _head(run: Run) -> list[str]:
    setup, method = run.setup, run.method
    lines = [
        f"{setup.name}: {setup.served_name} at {', '.join(setup.addresses.values())}, engine {setup.engine_version}",
    ]
    if setup.release_hash:
        lines.append(
            f"release {setup.release_hash[:16]}, image {setup.image_reference} ({str(setup.image_identity)[:23]})"
        )
    lines.append(
        f"warm pass, median and range of {method.repetitions}; {method.decode_tokens} tokens a stream, temperature 0, "
        f"thinking {method.thinking}; fresh words from seed {method.seed}"
    )
    return [*lines, *(f"Note: {note}" for note in method.notes)]


def _faults(run: Run) -> list[str]:
    if run.is_result:
        return []
    return ["**No result:**", *(f"- {fault}" for fault in run.reported.faults), ""]


def _figures(run: Run) -> list[str]:
    cold_run = run.model_copy(update={"passes": run.passes[:1]})
    cold = figures_of(cold_run)
    rows = [
        (name, figure.shown, cold[name].shown if name in cold else "", figure.unit, figure.detail or "")
        for name, figure in figures_of(run).items()
    ]
    table = markdown(("figure", "warm", "cold", "unit", "at"), rows)
    thinking = [name for name, decode in run.reported.decode.items() if decode.answer_without_content]
    prefill, generator = run.reported.prefill, run.reported.generator
    lines = [*table, ""]
    if prefill and prefill.cached_tokens is not None:
        lines.append(f"Cached prompt tokens in the prefill, as the server counts them: {prefill.cached_tokens:,.0f}.")
    if thinking:
        lines.append(f"Still thinking at the end, so the content is null: {', '.join(thinking)}.")
    if generator:
        lines.append(
            f"The load generator used {generator.processor_share:.0%} of one core and was late by at most "
            f"{generator.late_seconds * 1000:.1f} ms in 99 of 100 samples."
        )
    return [*lines, ""]


def _nodes(run: Run) -> list[str]:
    if not run.reported.nodes:
        return []
    rows = [_node_row(name, use) for name, use in run.reported.nodes.items()]
    heading = ("node", "over the rails, MB", "over others, MB", "least MemAvailable, GiB", "GPU MHz", "°C at most")
    unread = sorted({text for use in run.reported.nodes.values() for text in use.unread})
    return [*markdown(heading, rows), *(f"Not read: {text}" for text in unread), ""]


def _node_row(name: str, use: NodeUse) -> tuple[str, ...]:
    last = use.samples[-1]
    clock = f"{use.gpu_mhz.low:.0f} to {use.gpu_mhz.high:.0f}" if use.gpu_mhz else "-"
    hottest = max((spread.high for spread in (use.gpu_celsius, use.hottest_celsius) if spread), default=None)
    return (
        name,
        f"{last.rail_bytes / _MB:,.1f} ({', '.join(use.rails)})",
        f"{last.other_bytes / _MB:,.1f}",
        f"{use.lowest_available_bytes / _GIB:.2f}",
        clock,
        f"{hottest:.0f}" if hottest is not None else "-",
    )


def _quality(quality: Quality) -> list[str]:
    rows = [(f"needles in {int(tokens):,} tokens", *_tried(tried)) for tokens, tried in quality.needles.items()]
    rows.append(("count from 1 to 200", *_tried(quality.counting)))
    if quality.repeatability:
        again = quality.repeatability
        rows.append(("the same greedy request", f"{again.agree} of {again.runs} agree", f"{again.distinct} distinct"))
    return [*markdown(("quality", "right", "remark"), rows), ""]


def _tried(tried: Tried) -> tuple[str, str]:
    if tried.skipped:
        return "not tried", tried.skipped
    return f"{tried.right} of {tried.tried}", (tried.wrong or "").replace("|", "/").replace("\n", " ")


def _doubts(run: Run) -> list[str]:
    doubts = (*run.reported.doubts, *run.findings)
    return ["Doubts:", *(f"- {text}" for text in doubts), ""] if doubts else []


def _cell(figure: Named | None) -> str:
    return figure.shown if figure else ""


def _unit(*figures: Named | None) -> str:
    return next((figure.unit for figure in figures if figure), "")
