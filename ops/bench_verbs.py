"""`fleet bench`: measures a stack or an address, keeps the run, compares runs with each other and with the sources."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from ops.bench import comparing, keeping, tables
from ops.bench.record import Run
from ops.bench.running import Options, run_bench, wanted_fields
from ops.bench.target import find_target
from ops.errors import OperationError
from ops.progress import CONSOLE, progress


class _NamesATarget(TyperGroup):
    """A first word that is no verb is what `run` measures."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds the verb of a command line."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["run", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_NamesATarget,
    help="Measures as the sources measured. `fleet bench STACK` or `fleet bench http://HOST:8000/v1` runs it.",
    epilog="Exit codes of a run: 0 measured, 1 no result and why.",
    no_args_is_help=True,
)

Thinking = Literal["on", "off", "default"]
Json = Annotated[bool, typer.Option("--json", help="Write JSON for programs.")]
_SIDE = "A run's identifier or file, a stack or address (its last run), or a reference of the catalogue."


@app.command("run")
def run(
    target: Annotated[str, typer.Argument(metavar="STACK|ADDRESS", help="A stack of this project, or an address.")],
    streams: Annotated[
        list[int] | None, typer.Option(min=1, help="Streams at once, of each member; may be repeated. 6 if absent.")
    ] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Of each single measurement in a pass.")] = 3,
    decode_tokens: Annotated[int, typer.Option(min=2, help="Of each answer.")] = 256,
    prefill_tokens: Annotated[int, typer.Option(min=64, help="Of the long prompt, about.")] = 8900,
    thinking: Annotated[Thinking, typer.Option(help="What the chat template is told.")] = "off",
    router: Annotated[str | None, typer.Option(help="Address in front of a pool; the load goes there.")] = None,
    model: Annotated[str | None, typer.Option(help="As the address calls it; its first if absent.")] = None,
    key_variable: Annotated[str | None, typer.Option(help="Environment variable that holds the API's key.")] = None,
    quality: Annotated[bool, typer.Option(help="Try needles, counting and repeatability, too.")] = True,
    needle_tokens: Annotated[
        list[int] | None, typer.Option(min=64, help="Context of the needles; 33000 and 136000 if absent.")
    ] = None,
    repeated_runs: Annotated[int, typer.Option(min=0, help="Of the same greedy request.")] = 4,
    as_json: Json = False,
) -> None:
    """Measure a stack or an address: decode, prefill, aggregate, with the probes of every pass."""
    options = Options(
        decode_tokens=decode_tokens,
        prefill_tokens=prefill_tokens,
        streams=tuple(streams or (6,)),
        repetitions=repetitions,
        needle_tokens=tuple(needle_tokens or (33_000, 136_000)),
        repeated_runs=repeated_runs,
        quality=quality,
        thinking=thinking,
    )
    with progress("bench") as report:
        report(f"look at {target}")
        found = find_target(target, router, model, key_variable, wanted_fields(options))
        done = run_bench(found, options, report)
    path = keeping.keep(done)
    typer.echo(done.model_dump_json(indent=1) if as_json else tables.run_table(done))
    CONSOLE.print(f"kept as {path}", soft_wrap=True, markup=False)
    raise typer.Exit(0 if done.is_result else 1)


@app.command("list")
def list_runs(as_json: Json = False) -> None:
    """List the runs that are kept, the oldest first."""
    runs = keeping.kept_runs()
    if as_json:
        typer.echo(f"[{','.join(run.model_dump_json() for run in runs)}]")
        return
    rows = [(run.identifier, run.setup.name, run.started, "yes" if run.is_result else "no result") for run in runs]
    typer.echo("\n".join(tables.markdown(("run", "of", "started", "result"), rows)))


@app.command("show")
def show(
    run: Annotated[str, typer.Argument(help="A run's identifier or file, or a stack or address (its last run).")],
    plots: Annotated[Path | None, typer.Option(help="Folder for the plots, as SVG and PNG.")] = None,
    as_json: Json = False,
) -> None:
    """Show a run as a Markdown table, with the sources' figures for its model; draw its plots."""
    found = keeping.find_run(run)
    if as_json:
        typer.echo(found.model_dump_json(indent=1))
    else:
        typer.echo(tables.run_table(found))
        for comparison in comparing.references_of(found):
            typer.echo(f"\n{tables.comparison_table(comparison)}")
    _draw([found], plots)


@app.command("compare")
def compare(
    first: Annotated[str, typer.Argument(help=_SIDE)],
    second: Annotated[str, typer.Argument(help=_SIDE)],
    plots: Annotated[Path | None, typer.Option(help="Folder for the plots, as SVG and PNG.")] = None,
    as_json: Json = False,
) -> None:
    """Lay two runs, or a run and a source's figures, side by side, and say what differs in the setup."""
    comparison = comparing.compare(comparing.side(first), comparing.side(second))
    if as_json:
        typer.echo(_as_json(comparison))
    else:
        typer.echo(tables.comparison_table(comparison))
    _draw([side.run for side in (comparison.first, comparison.second) if side.run], plots)


def _as_json(comparison: comparing.Comparison) -> str:
    figures: dict[str, Any] = {
        name: {
            "first": vars(comparison.first.figures[name]) if name in comparison.first.figures else None,
            "second": vars(comparison.second.figures[name]) if name in comparison.second.figures else None,
            "ratio": comparison.ratio(name),
        }
        for name in comparison.names
    }
    titles = {"first": comparison.first.title, "second": comparison.second.title}
    return json.dumps({**titles, "figures": figures, "differs": comparison.differs}, indent=2)


def _draw(runs: list[Run], folder: Path | None) -> None:
    if folder is None:
        return
    if not runs:
        raise OperationError("references have no plots: name a run")
    from ops.bench.plots import draw  # takes a second to load

    for path in draw(runs, folder):
        CONSOLE.print(f"wrote {path}", soft_wrap=True, markup=False)
