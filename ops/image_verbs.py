"""`fleet image`: list, pin, build and verify the images of ranks."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ops.chains import listed_chains, show_chains
from ops.image_pin import pin
from ops.places import PROJECT
from ops.progress import progress
from ops.stack_images import JudgedImage, bring_image, build_image, judge_images
from ops.stacks import CATALOG, planned
from spec.chain import PatchChain

app = typer.Typer(help="The images of ranks: chains of small patches on a base pinned by digest.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Write JSON for programs.")]
Stack = Annotated[str, typer.Argument(help="Name of the stack whose image is meant.")]
_SHOWN_HASH = 19


@app.command("list")
def list_images(as_json: Json = False) -> None:
    """List the chains of patches/ with the identity of each step; another identity is another image."""
    chains = listed_chains()
    if as_json:
        typer.echo(json.dumps([listed.as_data() for listed in chains], indent=2))
    else:
        show_chains(chains)


@app.command("pin")
def pin_base(chain: Annotated[str, typer.Argument(help="Name of the chain, a folder of patches/.")]) -> None:
    """Ask the registry which digest the tag of a chain's base has now, and write it into chain.yaml."""
    pinned = pin(PROJECT / "patches" / chain)
    typer.echo(f"{pinned.image} is {pinned.digest} for {', '.join(pinned.platforms) or 'one platform'}")
    typer.echo("unchanged" if pinned.before == pinned.digest else f"it was {pinned.before or 'not pinned'}")


@app.command()
def build(
    stack: Stack,
    everywhere: Annotated[bool, typer.Option(help="Bring it to every node of the stack, too.")] = False,
    as_json: Json = False,
) -> None:
    """Build the image of a stack on its building node, as `up` would, without touching what runs."""
    release = planned(stack)
    with progress("image build") as report:
        report(f"build {release.image.reference} on {release.image.build_on}")
        content = build_image(release, _chain_of)
        moved = bring_image(release, content) if everywhere else {}
    if as_json:
        typer.echo(json.dumps({"reference": release.image.reference, **content, "moved_bytes": moved}, indent=2))
        return
    typer.echo(f"{release.image.reference} on {release.image.build_on}: {content['identity']}")
    for node, moved_bytes in moved.items():
        typer.echo(f"{moved_bytes:,} bytes to {node}")


@app.command()
def verify(
    stack: Stack,
    node: Annotated[list[str] | None, typer.Option(help="Only this node; may be repeated.")] = None,
    image: Annotated[
        str | None,
        typer.Option(metavar="REFERENCE", help="Any other image on these nodes, by the rules for all images."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare a stack's image on every node with the one that was built, and verify it from inside; else exit 1."""
    release = planned(stack)
    judged = judge_images(release, _chain_of, node or list(release.rank_nodes), image)
    if as_json:
        typer.echo(json.dumps([one.as_data() for one in judged], indent=2))
    else:
        _show(image or release.image.reference, release.image.build_on, judged)
    raise typer.Exit(0 if all(one.is_right for one in judged) else 1)


def _chain_of(name: str) -> PatchChain:
    return CATALOG.chain(name, "catalog/images")


def _show(reference: str, build_on: str, judged: list[JudgedImage]) -> None:
    console = Console(highlight=False)
    table = Table(title=reference, box=None, pad_edge=False, title_justify="left")
    for heading in ("node", "identity", f"as built on {build_on}", "checks from inside"):
        table.add_column(heading)
    for one in judged:
        table.add_row(one.node, (one.identity or "absent")[:_SHOWN_HASH], _as_built(one), _checks(one))
    console.print(table)
    for one in judged:
        for check in (one.report or {}).get("checks", ()):
            if check["outcome"] == "failed":
                console.print(f"{one.node}: {check['subject']}: {check['found']}, must be {check.get('expected')}")


def _as_built(one: JudgedImage) -> str:
    if one.is_as_built is None:
        return "not built there"
    if one.is_as_built:
        return "yes"
    if one.identity is None:
        return "no"
    return "no: other settings" if one.first_other_layer is None else f"no: layer {one.first_other_layer} differs"


def _checks(one: JudgedImage) -> str:
    if one.report is None:
        return "none: it runs as published" if one.identity else ""
    failed = sum(check["outcome"] == "failed" for check in one.report["checks"])
    return f"{failed} of {len(one.report['checks'])} failed" if failed else f"all {len(one.report['checks'])} passed"
