"""`fleet history` and `fleet rollback`: the Releases of a stack that were ready, and the way back to one of them."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ops.environment import environment_of
from ops.errors import OperationError
from ops.progress import progress
from ops.release_history import StackHistory, read_history, read_release
from ops.rollback import chosen, deploy
from ops.toolchain import ensure_toolchain
from spec.history import HistoryError, ReadyRelease, named

Json = Annotated[bool, typer.Option("--json", help="Write JSON for programs.")]
Stack = Annotated[str, typer.Argument(help="Name of the stack.")]
_SHOWN_HASH = 16


def register(app: typer.Typer) -> None:
    """Adds both verbs to a command line."""
    app.command()(history)
    app.command()(rollback)


def history(
    stack: Stack,
    release: Annotated[
        str | None, typer.Argument(metavar="[RELEASE]", help="Print this Release as JSON: beginning of its hash.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the Releases of a stack that were ready, newest first; they lie in the stack's own state."""
    found = read_history(stack, _variables())
    if release is not None:
        typer.echo(_entry(found, release).release)
    elif as_json:
        entries = [{"hash": one.hash, "ready_at": one.ready_at} for one in found.ready]
        typer.echo(json.dumps({"stack": stack, "begun": found.begun, "ready": entries}, indent=2))
    else:
        _show(found)


def rollback(
    stack: Stack,
    release: Annotated[
        str | None,
        typer.Argument(
            metavar="[RELEASE]", help="Beginning of its hash; the last that was ready and does not run, if absent."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    preview: Annotated[bool, typer.Option("--preview", help="Only show what it would change.")] = False,
) -> None:
    """Deploy a Release that was ready again, as it was; stack file, catalogue and patches are not asked.

    The stack file stays as it is: the next `up` goes forward again.
    """
    variables = _variables()
    found = read_history(stack, variables)
    ready = chosen(found, release)
    typer.echo(f"{stack}: from {_short(found.begun)} back to {_short(ready.hash)}, ready at {ready.ready_at}", err=True)
    arguments = ["preview"] if preview else ["up", *(["--yes", "--skip-preview"] if yes else [])]
    code = deploy(ready, stack, arguments, variables)
    if code == 0 and not preview:
        typer.echo(f"`./fleet review {stack}` shows what the stack file as it is would change", err=True)
    raise typer.Exit(code)


def _variables() -> dict[str, str]:
    with progress("setup") as report:
        return environment_of(ensure_toolchain(report))


def _entry(found: StackHistory, beginning: str) -> ReadyRelease:
    try:
        return named(found.ready, beginning)
    except HistoryError as error:
        raise OperationError(f"stack {found.stack}: {error}") from None


def _show(found: StackHistory) -> None:
    console = Console(highlight=False)
    if not found.ready:
        console.print(f"no Release of {found.stack} was ready yet")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("release", "ready at", "image", "model", "nodes", ""):
        table.add_column(heading)
    for one in found.ready:
        release = read_release(one, found.stack)
        runs = "runs" if one.hash == found.begun else ""
        image = release.image.reference.rpartition(":")[2]
        table.add_row(_short(one.hash), one.ready_at, image, release.model_name, " ".join(release.rank_nodes), runs)
    console.print(table)
    if found.parked:
        console.print(f"{found.stack} is parked: none of them runs")
    elif not found.ended_ready:
        console.print(f"the last `up`, of {_short(found.begun)}, did not end ready: `./fleet rollback {found.stack}`")


def _short(hashed: str | None) -> str:
    return (hashed or "nothing")[:_SHOWN_HASH]
