"""`fleet weights`: what is where, brought to every node, verified."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ops import weights_view
from ops.progress import progress

app = typer.Typer(
    help="The files of models: what is where, brought to every node, verified (docs/weights.md).", no_args_is_help=True
)

Json = Annotated[bool, typer.Option("--json", help="Write JSON for programs.")]
Stack = Annotated[str, typer.Argument(help="Name of the stack.")]
OneModel = Annotated[str | None, typer.Option("--model", help="Only this model or drafter of the stack.")]


@app.command()
def manifest(
    stack: Stack,
    model: OneModel = None,
    folder: Annotated[
        Path | None, typer.Option(help="A folder of this machine, instead of the source that the stack names.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check and hash a model's files where they come from, and print the hash that the catalogue can pin."""
    with progress("weights manifest") as report:
        found = weights_view.examined(stack, model, folder, report)
    if as_json:
        typer.echo(json.dumps({name: source.examined.as_data() for name, source in found}, indent=2, sort_keys=True))
    else:
        weights_view.show_manifests(found)


@app.command()
def status(stack: Stack, model: OneModel = None, as_json: Json = False) -> None:
    """Show what each node holds, by receipt and stat, and how many bytes would go to it."""
    _show_weights(weights_view.status_rows(stack, model), as_json)


@app.command()
def sync(stack: Stack, model: OneModel = None) -> None:
    """Bring the weights to every node of a stack, as its `up` does; go on where an earlier one was interrupted."""
    with progress("weights sync") as report:
        weights_view.sync(stack, model, report)


@app.command()
def verify(
    stack: Stack,
    model: OneModel = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read and hash every file again, on all nodes.")] = False,
    as_json: Json = False,
) -> None:
    """End with 1 unless every node holds all weights; what --deep finds damaged is mended by the next sync."""
    if deep:
        with progress("weights verify") as report:
            rows = weights_view.verify_rows(stack, model, report)
    else:
        rows = weights_view.status_rows(stack, model)
    _show_weights(rows, as_json)
    raise typer.Exit(0 if all(row.complete for row in rows) else 1)


def _show_weights(rows: list[weights_view.Row], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([row.as_data() for row in rows], indent=2))
    else:
        weights_view.show_rows(rows)
