"""Three pictures of a run, or of several, each as SVG and PNG."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ops.bench.figures import figures_of
from ops.bench.record import Run

_COLOURS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#787774")
_INSIDE: Any = {"ha": "center", "fontsize": 8, "color": "white"}
_BESIDE: Any = {"ha": "center", "fontsize": 8}
_GIB = 1 << 30
_MB = 1_000_000
_STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "svg.hashsalt": "gb10-serving",
}


def draw(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Draws decode by workload and aggregate by streams of all runs, and memory and traffic of the last one.

    A picture for which there are no figures is not drawn.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with pyplot.rc_context(_STYLE):
        for name, figure in (("decode", _decode(runs)), ("aggregate", _aggregate(runs)), ("nodes", _nodes(runs[-1]))):
            if figure is not None:
                written += _write(figure, folder / f"{runs[-1].identifier}-{name}")
    return written


def _write(figure: Figure, path: Path) -> list[Path]:
    paths = [path.with_name(f"{path.name}.svg"), path.with_name(f"{path.name}.png")]
    figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], dpi=144)
    pyplot.close(figure)
    return paths


def _decode(runs: Sequence[Run]) -> Figure | None:
    names = [name for name in figures_of(runs[-1]) if name.startswith("decode, ")]
    if not names:
        return None
    figure, axes = pyplot.subplots(figsize=(7.2, 3.8), layout="constrained")
    width = 0.8 / len(runs)
    for position, run in enumerate(runs):
        figures = figures_of(run)
        shown = [(place, figures[name]) for place, name in enumerate(names) if name in figures]
        places = [place - 0.4 + width * (position + 0.5) for place, _ in shown]
        heights = [found.median for _, found in shown]
        ranges = [[f.median - f.low for _, f in shown], [f.high - f.median for _, f in shown]]
        bars = axes.bar(
            places, heights, width * 0.92, yerr=ranges, capsize=3, color=_colour(position), ecolor="#37352f"
        )
        for place, height in zip(places, heights, strict=True):
            axes.annotate(_number(height), (place, 0), xytext=(0, 4), textcoords="offset points", **_INSIDE)
        bars.set_label(run.identifier)
    axes.set_xticks(range(len(names)), [name.removeprefix("decode, ") for name in names])
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("tokens per second")
    axes.set_title(_title("One stream, by workload; median and range", runs), loc="left")
    _legend(axes, runs)
    return figure


def _aggregate(runs: Sequence[Run]) -> Figure | None:
    drawn = [run for run in runs if run.is_result and run.reported.aggregates]
    if not drawn:
        return None
    figure, axes = pyplot.subplots(figsize=(7.2, 3.8), layout="constrained")
    for position, run in enumerate(drawn):
        points = sorted((one.streams, one.tokens_per_second) for one in run.reported.aggregates)
        streams, rates = zip(*points, strict=True)
        axes.plot(streams, rates, marker="o", color=_colour(position), label=run.identifier)
        above = 7 if position % 2 == 0 else -14
        for place, rate in points:
            axes.annotate(_number(rate), (place, rate), xytext=(0, above), textcoords="offset points", **_BESIDE)
    axes.set_xticks(sorted({one.streams for run in drawn for one in run.reported.aggregates}))
    axes.margins(y=0.15)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("streams at once")
    axes.set_ylabel("tokens per second, all together")
    axes.set_title(_title("Aggregate by streams", drawn), loc="left")
    _legend(axes, drawn)
    return figure


def _nodes(run: Run) -> Figure | None:
    nodes = run.reported.nodes
    if not nodes:
        return None
    figure, (memory, traffic) = pyplot.subplots(2, 1, figsize=(7.2, 5.4), sharex=True, layout="constrained")
    for position, (name, use) in enumerate(nodes.items()):
        seconds = [sample.seconds for sample in use.samples]
        colour = _colour(position)
        memory.plot(seconds, [sample.available_bytes / _GIB for sample in use.samples], color=colour, label=name)
        traffic.plot(seconds, [sample.rail_bytes / _MB for sample in use.samples], color=colour, label=f"{name}, rails")
        traffic.plot(
            seconds,
            [sample.other_bytes / _MB for sample in use.samples],
            color=colour,
            linestyle=":",
            label=f"{name}, others",
        )
    memory.set_ylabel("MemAvailable, GiB")
    memory.set_title(_title("Memory and traffic of the warm pass", [run]), loc="left")
    traffic.set_ylabel("MB since the pass began")
    traffic.set_xlabel("seconds")
    for axes in (memory, traffic):
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _title(text: str, runs: Sequence[Run]) -> str:
    return f"{text}\n{runs[0].identifier}" if len(runs) == 1 else text


def _legend(axes: Axes, runs: Sequence[Run]) -> None:
    if len(runs) > 1:
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0.0, -0.2))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def _colour(position: int) -> str:
    return _COLOURS[position % len(_COLOURS)]
