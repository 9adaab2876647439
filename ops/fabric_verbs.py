"""`fleet fabric`: is the network between nodes what a deployment needs."""

import json
from typing import Annotated

import typer
from rich.console import Console

from ops.bench.tables import markdown
from ops.doctor_verbs import show_finding
from ops.fabric_check.checking import Outcome, check
from ops.fabric_check.subject import find_subject
from ops.progress import progress

app = typer.Typer(help="The network between the nodes of a cluster or a stack.", no_args_is_help=True)
_MIB = 1 << 20


@app.command("check")
def check_fabric(
    subject: Annotated[str, typer.Argument(metavar="STACK|CLUSTER", help="A stack has an image for collectives, too.")],
    disturb: Annotated[bool, typer.Option("--disturb", help="Measure although a deployment serves there.")] = False,
    collectives: Annotated[bool, typer.Option(help="Run all-reduce in the stack's image.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for programs.")] = False,
) -> None:
    """Check links, GID tables, the mesh, the speed of each link and all-reduce, before anything serves.

    Exit codes: 0 sound; 1 findings, or a step that could not be run.
    """
    found = find_subject(subject)
    with progress("fabric check") as report:
        outcome = check(found, disturb, collectives, report)
    if as_json:
        typer.echo(json.dumps(outcome.as_data(), indent=2))
    else:
        show(outcome)
    raise typer.Exit(0 if outcome.is_sound and not outcome.left_out else 1)


def show(outcome: Outcome) -> None:
    """Prints what each node has, what was measured, and what it means."""
    console = Console(highlight=False, soft_wrap=True)
    for node, look in outcome.looks.items():
        console.print(f"[bold]{node}[/bold]")
        console.print(look["table"], markup=False)
    for line in (*_mesh_lines(outcome), *_stream_lines(outcome), *_collective_lines(outcome)):
        console.print(line, markup=False)
    for found in outcome.findings:
        show_finding(console, found)
    for node, why in outcome.unasked.items():
        console.print(f"[magenta]could not ask[/magenta] {node}")
        console.print(f"    {why}", markup=False)
    for text in outcome.left_out:
        console.print("[magenta]left out[/magenta]", end=" ")
        console.print(text, markup=False)
    for text in outcome.notes:
        console.print(text, markup=False)
    count = len(outcome.findings)
    console.print(f"{count} finding{'s' if count != 1 else ''}", markup=False)


def _mesh_lines(outcome: Outcome) -> list[str]:
    tried = [flow for flow in outcome.flows if flow.gigabits_per_second is None]
    if not tried:
        return []
    nodes = list(dict.fromkeys(flow.source for flow in tried))
    rows = [
        (f"rail {rail}, from {source}", *(_reached(outcome, rail, source, target) for target in nodes))
        for rail in sorted({flow.rail for flow in tried})
        for source in nodes
    ]
    return ["", *markdown(("mesh: ports reached", *nodes), rows)]


def _reached(outcome: Outcome, rail: int, source: str, target: str) -> str:
    flows = [
        flow
        for flow in outcome.flows
        if (flow.rail, flow.source, flow.target) == (rail, source, target) and flow.gigabits_per_second is None
    ]
    return f"{sum(flow.why is None for flow in flows)} of {len(flows)}"


def _stream_lines(outcome: Outcome) -> list[str]:
    rows = [
        (f"rail {flow.rail}", f"{flow.source} to {flow.target}", f"{flow.gigabits_per_second:.2f}")
        for flow in outcome.flows
        if flow.gigabits_per_second is not None
    ]
    return ["", *markdown(("one TCP flow", "from, to", "Gb/s"), rows)] if rows else []


def _collective_lines(outcome: Outcome) -> list[str]:
    if not outcome.collectives:
        return []
    sizes = sorted({size for one in outcome.collectives for size in one.gigabits_per_second})
    rows = [
        (
            one.group,
            f"{one.variant} ({one.backend})",
            *(f"{one.gigabits_per_second[size]:.2f}" if size in one.gigabits_per_second else "" for size in sizes),
        )
        for one in outcome.collectives
    ]
    heading = ("group", "all-reduce, bus Gb/s", *(f"{size // _MIB} MiB" for size in sizes))
    versions = {f"{node} {version}" for one in outcome.collectives for node, version in one.nccl.items()}
    return ["", *markdown(heading, rows), *([f"NCCL: {', '.join(sorted(versions))}"] if versions else [])]
