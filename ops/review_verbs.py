"""`fleet review`: what the stack files as they are would change on each node."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ops.environment import environment_of
from ops.progress import progress
from ops.review import Reviewed, review_against_checkout, review_against_file, review_stacks
from ops.review_markdown import markdown
from ops.review_page import page
from ops.toolchain import ensure_toolchain

RESTARTS, REFUSED = 4, 5
"""Exit codes beside 0 (nothing that serves is interrupted) and those of every verb."""


def register(app: typer.Typer) -> None:
    """Adds the verb to a command line."""
    app.command(
        "review",
        epilog="Exit codes: 0 nothing that serves is interrupted, 4 a group that serves restarts or stops, 5 a stack "
        "is refused or in another's way, 1 it could not be reviewed and why, 2 wrong usage.",
    )(review)


def review(
    stacks: Annotated[list[str], typer.Argument(help="Names of stacks that are to run at the same time.")],
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for programs instead of Markdown.")] = False,
    page_file: Annotated[
        Path | None, typer.Option("--page", metavar="FILE", help="Write one HTML page with the graph, too.")
    ] = None,
    deployed: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Compare one stack with this Release, as `fleet plan --json` wrote it, instead of with its state: "
            "with another stack's, it shows what a switch does.",
        ),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Compare with what this checkout says, instead of with the state: for who has no access to the state.",
        ),
    ] = None,
) -> None:
    """Show what stack files as they are would change on each node, as Markdown; contacts no node."""
    if deployed is not None and (base is not None or len(stacks) != 1):
        raise typer.BadParameter("a Release is of one stack: name one, without --base", param_hint="--deployed")
    reviewed = _reviewed(stacks, deployed, base)
    if page_file is not None:
        page_file.write_text(page(reviewed))
    typer.echo(json.dumps(reviewed.as_data(), indent=2) if as_json else markdown(reviewed))
    raise typer.Exit(REFUSED if reviewed.is_refused else RESTARTS if reviewed.interrupts else 0)


def _reviewed(stacks: list[str], deployed: Path | None, base: Path | None) -> Reviewed:
    if deployed is not None:
        return review_against_file(stacks[0], deployed)
    if base is not None:
        return review_against_checkout(stacks, base)
    with progress("review") as report:
        return review_stacks(stacks, environment_of(ensure_toolchain(report)), report)
