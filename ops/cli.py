"""The `fleet` command line: one function a verb, each a few lines over the module that does the work.

Exit codes: 0 done; 1 not done, and standard error says why; 2 wrong usage; 3 the machine lacks something that could not
be installed. `fleet pulumi` and `fleet test` end with the code of what they ran.
"""

import json
import shlex
import sys
from typing import Annotated, NoReturn

import typer

from lab.errors import LabError
from ops import (
    bench_verbs,
    doctor_verbs,
    fabric_verbs,
    image_verbs,
    lab_stack,
    plan_view,
    review_verbs,
    rollback_verbs,
    status_verb,
    switch_verbs,
    weights_verbs,
)
from ops.environment import environment_of, pulumi_environment
from ops.errors import OperationError
from ops.golden import write_golden_files
from ops.progress import CONSOLE, progress
from ops.pulumi import named_stack, run_pulumi
from ops.stack_state import ensure_stack
from ops.stacks import planned, situation_of
from ops.testing import LEVELS, run_tests
from ops.toolchain import ToolchainError, ensure_toolchain
from spec.errors import SpecificationError
from spec.origin import origins
from spec.rules import FIRST, RULES

app = typer.Typer(
    name="fleet",
    help="Serves large models across GB10 nodes. Preview and up are Pulumi's own: `fleet pulumi preview --stack NAME`.",
    epilog="Exit codes: 0 done, 1 not done and why, 2 wrong usage, 3 something cannot be installed here.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
lab_app = typer.Typer(
    help="The virtual fabric: nodes on this machine, a tiny model, a real answer.", no_args_is_help=True
)
app.add_typer(lab_app, name="lab")

app.add_typer(image_verbs.app, name="image")
app.add_typer(bench_verbs.app, name="bench")
app.add_typer(fabric_verbs.app, name="fabric")
app.command("doctor")(doctor_verbs.doctor)
app.command()(status_verb.status)

app.add_typer(weights_verbs.app, name="weights")
review_verbs.register(app)
rollback_verbs.register(app)
switch_verbs.register(app)

Json = Annotated[bool, typer.Option("--json", help="Write JSON for programs.")]


@app.command()
def setup(as_json: Json = False) -> None:
    """Make the Pulumi engine and its plugins ready and say which ones this machine uses."""
    with progress("setup") as report:
        toolchain = ensure_toolchain(report)
    if as_json:
        typer.echo(json.dumps(toolchain.as_data(), indent=2))
        return
    for part in toolchain.parts:
        typer.echo(f"{part.name:<24} {part.version:<10} {part.origin}")


@app.command()
def env() -> None:
    """Print export lines, so that `eval "$(./fleet env)"` makes plain `pulumi` work here."""
    with progress("setup") as report:
        variables = pulumi_environment(report)
    for name, value in sorted(variables.items()):
        typer.echo(f"export {name}={shlex.quote(value)}")


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def pulumi(context: typer.Context) -> None:
    """Run pulumi with everything set: `fleet pulumi preview --stack lab`."""
    with progress("setup") as report:
        variables = environment_of(ensure_toolchain(report))
    if stack := named_stack(context.args):
        ensure_stack(stack, variables)
    raise typer.Exit(run_pulumi(context.args, variables))


@app.command()
def plan(
    stack: Annotated[str, typer.Argument(help="Name of the stack.")],
    as_json: Json = False,
    docker: Annotated[
        str | None,
        typer.Option(
            metavar="RANK", help="Print the `docker run` of one rank's engine, without its supervisor: 0, or GROUP/0."
        ),
    ] = None,
    why: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Tell where a flag, a variable or a key of the stack file came from."),
    ] = None,
) -> None:
    """Show what a stack would run on each node; needs no node, no Pulumi and no network."""
    release = planned(stack)
    if docker is not None:
        typer.echo(plan_view.docker_run(release, plan_view.find_rank(release, docker)))
    elif why is not None:
        plan_view.show_origins(why, origins(situation_of(stack), release, why))
    elif as_json:
        typer.echo(json.dumps({"hash": release.hash, **release.model_dump(mode="json")}, indent=2, sort_keys=True))
    else:
        plan_view.show(release)


@app.command()
def rules(as_json: Json = False) -> None:
    """List the rules that every plan is held against."""
    if as_json:
        listed = [{"id": rule.id, "severity": rule.severity, "summary": rule.summary} for rule in (*FIRST, *RULES)]
        typer.echo(json.dumps(listed, indent=2))
    else:
        plan_view.show_rules()


@app.command()
def golden() -> None:
    """Write the golden files of all stacks anew, after a change to what ranks run that is meant."""
    changed = write_golden_files()
    typer.echo(f"changed: {', '.join(changed)}" if changed else "nothing changed")


@app.command("test")
def run_levels(
    levels: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(LEVELS)}; all if none is named.")] = None,
) -> None:
    """Run lint, types and the tests; installs whatever they need."""
    raise typer.Exit(run_tests(levels or list(LEVELS)))


@lab_app.command()
def up(
    nodes: Annotated[
        int | None, typer.Option(min=1, help="How many nodes; two, or what the stack needs, if absent.")
    ] = None,
    link_gbit: Annotated[
        float | None, typer.Option(min=0.01, help="Speed of each rail in Gbit/s; unlimited if absent.")
    ] = None,
    stack: Annotated[str, typer.Option(help="The stack to bring up on it.")] = "lab",
    serve: Annotated[bool, typer.Option(help="Run `pulumi up`; --no-serve makes nodes, image and model only.")] = True,
) -> None:
    """Make the virtual fabric and bring a stack up on it, to a real answer."""
    lab_stack.lab_up(nodes, link_gbit, stack if serve else None)


@lab_app.command()
def down() -> None:
    """Remove the virtual fabric and the state of what ran on it; caches stay."""
    lab_stack.lab_down()


@lab_app.command()
def status(as_json: Json = False) -> None:
    """Show the nodes of the virtual fabric and whether the endpoint answers."""
    lab_stack.lab_status(as_json)


def run() -> NoReturn:
    """Runs the command line and ends the process with its exit code."""
    try:
        app()
    except ToolchainError as error:
        _end(str(error), 3)
    except (OperationError, SpecificationError, LabError) as error:
        _end(str(error), 1)
    sys.exit(0)


def _end(text: str, code: int) -> NoReturn:
    CONSOLE.print(text, style="red", markup=False, soft_wrap=True)
    sys.exit(code)
