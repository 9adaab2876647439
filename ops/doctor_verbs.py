"""`fleet doctor`: what is wrong with nodes, and what cures it."""

import json
from typing import Annotated

import typer
from rich.console import Console

from ops.doctor.examining import Diagnosis, Examination, examine, patients
from ops.progress import progress

_COLOURS = {"error": "red", "warning": "yellow", "note": "blue"}
_COULD_NOT_ASK = 4


def doctor(
    node: Annotated[list[str] | None, typer.Argument(metavar="[NODE]...", help="All that can exist if absent.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Only nodes of this cluster.")] = None,
    stack: Annotated[str | None, typer.Option(help="Only nodes of this stack.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for programs.")] = False,
) -> None:
    """Examine nodes without changing anything: what is wrong, why it matters, what cures it.

    Exit codes: 0 nothing but notes; 1 errors or warnings; 4 none, but a node could not be asked.
    """
    chosen = patients(node or (), cluster, stack)
    with progress("doctor") as report:
        report(f"examine {', '.join(patient.name for patient in chosen)}")
        examination = examine(chosen)
    if as_json:
        typer.echo(json.dumps(examination.as_data(), indent=2))
    else:
        show(examination)
    raise typer.Exit(exit_code(examination))


def exit_code(examination: Examination) -> int:
    """Returns 1 for errors or warnings, else 4 where a whole node could not be asked, else 0."""
    if any(found.severity != "note" for found in examination.findings):
        return 1
    return _COULD_NOT_ASK if any(one["check"] == "node" for one in examination.unasked) else 0


def show(examination: Examination) -> None:
    """Prints the findings, the worst first, and what could not be asked."""
    console = Console(highlight=False, soft_wrap=True)
    for found in examination.findings:
        show_finding(console, found)
    for (node, why), checks in _unasked_by_reason(examination).items():
        what = "the node" if checks == ["node"] else ", ".join(checks)
        console.print(f"[magenta]could not ask[/magenta] {node}: {what}")
        console.print(f"    {why}", markup=False)
    console.print(
        f"{_counted(len(examination.findings), 'finding')} on {_counted(len(examination.nodes), 'node')}", markup=False
    )


def _unasked_by_reason(examination: Examination) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for one in examination.unasked:
        found.setdefault((one["node"], one["why"]), []).append(one["check"])
    return found


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"


def show_finding(console: Console, found: Diagnosis) -> None:
    """Prints one finding with its cure."""
    colour = _COLOURS[found.severity]
    console.print(f"[{colour}]{found.severity}[/{colour}] [bold]{found.id}[/bold] on {found.node}")
    console.print(f"    read    {found.read}", markup=False)
    console.print(f"    why     {found.why}", markup=False)
    console.print(f"    source  {found.source}", markup=False)
    console.print(f"    cure    {found.cure}", markup=False)
