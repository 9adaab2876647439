"""`fleet switch`, `fleet claims` and `fleet give-up`: who serves on which node, handed over, looked at, cleared."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ops.claims import clear, looked_at
from ops.environment import environment_of
from ops.errors import OperationError
from ops.giving_up import give_up, machines_in, nodes_in, why_unreachable
from ops.progress import progress
from ops.stack_state import await_lock, known_stacks, resources
from ops.stacks import CATALOG
from ops.switch import Controller, Plan, Result, carry_out, check, plan_switch
from ops.toolchain import ensure_toolchain
from spec.claims import Found, StackView
from spec.cluster import Cluster
from spec.handover import Occupant

Json = Annotated[bool, typer.Option("--json", help="Write JSON for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

RESTORED, DOWN = 4, 5
"""Exit codes of a switch whose target does not serve: what served before does again, or does not either."""

_INTERRUPTED = 130
_EXIT_CODES = {"done": 0, "restored": RESTORED, "down": DOWN}

claims_app = typer.Typer(help="Which deployment holds which node (docs/switching.md).", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Adds the verbs to a command line."""
    app.command(epilog=f"Exit codes: 0 done, 1 nothing touched, {RESTORED} FROM serves again, {DOWN} neither serves.")(
        switch
    )
    app.command("give-up")(give_node_up)
    app.add_typer(claims_app, name="claims")


def switch(
    stacks: Annotated[list[str], typer.Argument(metavar="FROM... TO", help="Stacks that make room, then the one.")],
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Hand nodes over to another deployment; if that one does not serve, what served before is brought back.

    Everything of TO is checked while FROM serves: image and weights are brought, every node's preflight passes. An
    interrupted switch is run again as it was. With TO alone, a parked deployment is brought up on free nodes.
    """
    with progress("switch") as report:
        controller = Controller(environment_of(ensure_toolchain(report)), report)
        plan = plan_switch(stacks[:-1], stacks[-1], controller)
        brought = check(plan, controller)
    _show_plan(plan)
    if not yes:
        _confirm(" and ".join([*(f"park {stack}" for stack in stacks[:-1]), f"bring {stacks[-1]} up?"]))
    with _told_when_interrupted(stacks), progress("switch") as report:
        result = carry_out(plan, brought, Controller(controller.variables, report))
    if as_json:
        typer.echo(json.dumps({**plan.as_data(), **result.as_data()}, indent=2))
    else:
        show_result(plan, result)
    raise typer.Exit(_EXIT_CODES[result.outcome])


def give_node_up(
    stack: Annotated[str, typer.Argument(help="Name of the stack.")],
    nodes: Annotated[list[str], typer.Argument(help="Its nodes that do not answer any more.")],
    yes: Yes = False,
) -> None:
    """Take unreachable nodes out of a stack's state, so that `up` and `destroy` go on without them.

    Nothing is done on these nodes: what is left there is told, and can be cleared with `fleet claims clear` later.
    """
    with progress("give up") as report:
        variables = environment_of(ensure_toolchain(report))
        found = nodes_in(resources(stack, variables, show_secrets=True))
        for node in nodes:
            if node in found and why_unreachable(*found[node]) is None:
                raise OperationError(
                    f"{node} answers: nothing has to be given up. `pulumi destroy --stack {stack}`, or `active: false` "
                    "in its stack file, removes what runs there"
                )
        await_lock(stack, variables, report)
    if not yes:
        _confirm(f"Forget what {stack} has on {', '.join(nodes)}, without removing it there?")
    for given in give_up(stack, nodes, variables):
        typer.echo(str(given))
    typer.echo(
        "`up` or `destroy` now go on without; `./fleet claims show CLUSTER` shows the rest once the node is back"
    )


@claims_app.command()
def show(cluster: Annotated[str, typer.Argument(help="Name of the cluster.")], as_json: Json = False) -> None:
    """Show who holds each node of a cluster; beside a claim that nobody stands behind, the command that clears it."""
    found = _look(CATALOG.cluster(cluster))
    if as_json:
        typer.echo(json.dumps({node: one.model_dump(mode="json") for node, one in found.items()}, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("node", "state", "stack", "group", "generation", "since", "by", "why"):
        table.add_column(heading, overflow="fold")
    for node, one in found.items():
        claim = one.claim or {}
        words = [str(claim.get(key) or "") for key in ("stack", "group", "generation", "since", "by")]
        words[2] = words[2][:12]
        table.add_row(node, one.state, *words, one.why)
    Console(highlight=False).print(table)
    for node, one in found.items():
        if one.state in ("stale", "left"):
            typer.echo(f"./fleet claims clear {cluster} {node}")


@claims_app.command("clear")
def clear_claim(
    cluster: Annotated[str, typer.Argument(help="Name of the cluster.")],
    node: Annotated[str, typer.Argument(help="Name of the node.")],
) -> None:
    """Remove a claim that nobody stands behind, and containers that no stack's state has any more."""
    described = CATALOG.cluster(cluster)
    if node not in described.nodes:
        raise OperationError(f"{node}: not in cluster {cluster}, which has {', '.join(described.nodes)}")
    found = _look(described)[node]
    clear(described, node, found)
    names = ", ".join(one.name for one in found.containers)
    typer.echo(f"{node} is free{f'; removed {names}' if names else ''}")


def views(variables: Mapping[str, str]) -> dict[str, StackView]:
    """Returns which machines the backend's stacks hold."""
    names = sorted(known_stacks(variables))
    return {name: StackView(machines=machines_in(resources(name, variables))) for name in names}


def _look(cluster: Cluster) -> dict[str, Found]:
    with progress("claims") as report:
        return looked_at(cluster, views(environment_of(ensure_toolchain(report))))


def _show_plan(plan: Plan) -> None:
    console = Console(stderr=True, highlight=False)
    table = Table(box=None, pad_edge=False)
    for heading in ("node", "now", "then"):
        table.add_column(heading)
    for one in plan.handover.nodes:
        table.add_row(one.node, ", ".join(map(_named, one.leaving)) or "free", _named(one.arriving))
    console.print(table)
    for giver in plan.givers:
        if not giver.is_active:
            console.print(f"{giver.stack} is parked already; if {plan.target.stack} does not serve, it is started")
        if not giver.was_ready:
            console.print(f"{giver.stack} was never ready: if {plan.target.stack} does not serve, nothing does")


def _named(occupant: Occupant | None) -> str:
    return f"{occupant.stack} {occupant.group} rank {occupant.rank}" if occupant else "free"


def show_result(plan: Plan, result: Result) -> None:
    """Prints how a switch ended, and what it left to do."""
    target = plan.target.stack
    if result.times:
        words = {key.removesuffix("_seconds"): seconds for key, seconds in asdict(result.times).items()}
        split = ", ".join(f"{word} {seconds:.0f} s" for word, seconds in words.items())
        typer.echo(f"{target} serves: {split}")
    else:
        typer.echo(f"{target} does not serve: {result.why}")
    for given in result.given_up:
        typer.echo(f"{given}; `./fleet claims show {plan.target.cluster}` when it is back")
    if result.outcome != "done" and result.serving:
        typer.echo(f"{', '.join(result.serving)} serves again, with its Release that was ready last")
    for stack, reason in result.down.items():
        typer.echo(f"{stack} is down: {reason}\n`./fleet rollback {stack}` tries again")


@contextmanager
def _told_when_interrupted(stacks: list[str]) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"interrupted: `./fleet switch {' '.join(stacks)}` goes on", err=True)
        raise typer.Exit(_INTERRUPTED) from None


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise OperationError(f"{question} Nobody is there to be asked, and nothing was touched: say --yes")
    if not typer.confirm(question, err=True):
        raise OperationError("nothing was touched")
