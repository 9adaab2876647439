"""`fleet status`: how a stack stands, shown to a person or to a program."""

import json
import time
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ops.progress import CONSOLE
from ops.stacks import planned, stacks
from ops.status import StackStatus, stack_status
from spec.errors import SpecificationError
from spec.release import Release
from spec.standing import Standing, Verdict, worst

_GIB = 1 << 30
_SHOWN_LINES = 8
_PAUSE_SECONDS = 2.0
_COLOURS: dict[Verdict, str] = {"right": "green", "wrong": "red", "absent": "red", "unknown": "yellow"}
_CODES: dict[Verdict, int] = {"right": 0, "wrong": 1, "absent": 1, "unknown": 4}


def status(
    stack: Annotated[
        str | None, typer.Argument(help="Name of the stack; every stack that has something on a node if absent.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again until it is interrupted.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for programs.")] = False,
) -> None:
    """Show how a stack stands on each node: ranks, image, weights, claims, router, and what differs from its plan.

    All nodes are asked at once. What cannot be asked is `unknown`, never down.
    Exit codes: 0 everything is right; 1 something is wrong or absent; 4 nothing is known to be wrong, but something
    cannot be asked; 2 wrong usage.
    """
    releases = [planned(stack)] if stack else _all_releases()
    if watch and not as_json:
        _watch(releases, only_present=stack is None)
        return
    while True:
        found = _statuses(releases, only_present=stack is None)
        if as_json:
            typer.echo(json.dumps([one.as_data() for one in found], indent=None if watch else 2))
        else:
            Console(highlight=False).print(_shown(found))
        if not watch:
            break
        time.sleep(_PAUSE_SECONDS)
    raise typer.Exit(_CODES[worst(one.verdict for one in found)])


def _all_releases() -> list[Release]:
    """Returns every stack that can be planned."""
    return [release for stack in stacks() if (release := _planned_if_possible(stack))]


def _planned_if_possible(stack: str) -> Release | None:
    try:
        return planned(stack)
    except SpecificationError as error:
        CONSOLE.print(f"{stack} is left out: {error}", markup=False, soft_wrap=True)
        return None


def _statuses(releases: list[Release], only_present: bool) -> list[StackStatus]:
    found = [stack_status(release) for release in releases]
    return [one for one in found if not only_present or _is_present(one)]


def _is_present(status: StackStatus) -> bool:
    """Tells whether a node has a rank of the stack, or might have one that cannot be asked."""
    return any(one.kind == "rank" and one.verdict in ("right", "wrong") for one in status.standings)


def _watch(releases: list[Release], only_present: bool) -> None:
    console = Console(highlight=False)
    try:
        with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
            while True:
                live.update(_shown(_statuses(releases, only_present)), refresh=True)
                time.sleep(_PAUSE_SECONDS)
    except KeyboardInterrupt:
        return


def _shown(statuses: list[StackStatus]) -> RenderableType:
    if not statuses:
        return Text("no stack has a rank on a node that answers")
    return Group(*(part for status in statuses for part in _parts(status)))


def _parts(status: StackStatus) -> list[RenderableType]:
    release = status.release
    title = Text.assemble((release.stack, "bold"), "  ", _verdict(status.verdict), f"  release {release.hash[:16]}")
    parts: list[RenderableType] = [title]
    if status.front:
        parts.append(Text(f"users  {status.front}"))
    for group in release.groups:
        where = status.endpoints.get(group.name, "an offline job, no API")
        parts.append(Text(f"group {group.name}  {where}  generation {group.hash[:16]}"))
    parts.append(_table(status))
    parts += [Text(why) for why in status.silent.values()]
    parts += [line for one in status.standings if one.node not in status.silent for line in _details(one)]
    if status.diagnosis:
        parts += [Text(status.diagnosis, style="yellow")]
    return parts


def _table(status: StackStatus) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("node", "what", "", "state", "memory available"):
        table.add_column(heading)
    for one in status.standings:
        if one.kind == "rank" or (one.verdict != "right" and one.node not in status.silent):
            table.add_row(one.node, _what(one), _verdict(one.verdict), _state(one), _memory(status, one.node))
    quiet = [one for one in status.standings if one.kind != "rank" and one.verdict == "right"]
    kinds = {kind: sum(one.kind == kind for one in quiet) for kind in ("image", "weights", "claim", "router")}
    counted = ", ".join(f"{kind} {count}" for kind, count in kinds.items() if count)
    if counted:
        table.add_row("", counted, _verdict("right"), "", "")
    return table


def _what(one: Standing) -> str:
    return f"{one.kind} {one.name}"


def _state(one: Standing) -> str:
    facts = one.facts or {}
    waiting = facts.get("waiting_for")
    answered = f", answer {facts['answer']}" if facts.get("answer") else ""
    return f"{one.state}{answered}{f': {waiting[0]}' if waiting else ''}"


def _memory(status: StackStatus, node: str) -> str:
    memory = status.memory[node]
    if memory is None:
        return "unknown"
    share = memory["available_bytes"] / memory["total_bytes"] * 100
    floor = status.release.memory.floor_percent
    return f"{memory['available_bytes'] / _GIB:.1f} GiB, {share:.0f} % (floor {floor:g})"


def _verdict(verdict: Verdict) -> Text:
    return Text(verdict, style=_COLOURS[verdict])


def _details(one: Standing) -> list[RenderableType]:
    """Returns what somebody needs who has to mend it."""
    if one.verdict == "right":
        return []
    where = f"{one.node}, {_what(one)}: "
    cause = (one.facts or {}).get("cause")
    lines = [*([f"{where}{cause}"] if cause else []), *(f"{where}{text}" for text in one.differs)]
    if one.mend:
        lines.append(f"{where}to mend it: {one.mend}")
    lines += [f"    {line}" for line in one.last_lines[-_SHOWN_LINES:]]
    return [Text(line) for line in lines]
