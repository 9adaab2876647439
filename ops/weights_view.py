"""`fleet weights`: what is where, shown to a person or to a program."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ops.errors import OperationError
from ops.progress import Report
from ops.stacks import planned
from ops.weights import Delivery, Held, Source, bring, delivery_of, distrust, examine_source, held, manifest_of_node
from ops.weights import missing as missing_files

_MOST_NAMED = 3


@dataclass(frozen=True)
class Row:
    """The weights of one model on one node.

    Attributes:
        weights, node: names.
        complete: the receipt vouches for them.
        manifest: that the receipt names.
        missing_bytes: what a transfer would bring; none where nobody knows yet how much it is.
        why: incomplete.
    """

    weights: str
    node: str
    complete: bool
    manifest: str | None
    missing_bytes: int | None
    why: str | None

    def as_data(self) -> dict[str, Any]:
        """Returns it as plain data, for JSON."""
        return asdict(self)


def deliveries(stack: str, model: str | None) -> list[Delivery]:
    """Returns the deliveries of a stack, or the one of one model.

    Raises:
        OperationError: the stack has no such model.
        SpecificationError: the stack cannot work.
    """
    release = planned(stack)
    found = [delivery_of(release, plan) for plan in release.weights if model in (None, plan.name)]
    if not found:
        raise OperationError(
            f"--model {model}: the stack {stack} has {', '.join(plan.name for plan in release.weights)}"
        )
    return found


def status_rows(stack: str, model: str | None) -> list[Row]:
    """Asks every node for its receipts and for what it lacks; reads no weights.

    Raises:
        OperationError: a node cannot be reached.
    """
    return [row for delivery in deliveries(stack, model) for row in _rows(delivery)]


def verify_rows(stack: str, model: str | None, report: Report) -> list[Row]:
    """Has every node hash all its weights again; what is damaged is noted there, so that a sync mends it.

    Raises:
        OperationError: a node cannot be reached.
    """
    return [row for delivery in deliveries(stack, model) for row in _deep_rows(delivery, report)]


def sync(stack: str, model: str | None, report: Report) -> None:
    """Brings the weights to all nodes of a stack, as its `up` would.

    Raises:
        OperationError: see ops.weights.bring.
    """
    for delivery in deliveries(stack, model):
        bring(delivery, report)


def examined(stack: str, model: str | None, folder: Path | None, report: Report) -> list[tuple[str, Source]]:
    """Makes the manifest of each model at its source, or of one folder of this machine.

    Raises:
        OperationError: there is no whole checkpoint, or a folder was given for several models.
    """
    found = deliveries(stack, model)
    if folder and len(found) > 1:
        raise OperationError(
            f"--folder {folder}: the stack {stack} has {', '.join(one.plan.name for one in found)}; say with --model "
            "whose folder it is"
        )
    return [(delivery.plan.name, examine_source(delivery, folder, report)) for delivery in found]


def show_rows(rows: list[Row]) -> None:
    """Prints what is where."""
    table = Table(box=None, pad_edge=False)
    for heading in ("weights", "node", "state", "to bring", "manifest"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        state = "complete" if row.complete else "incomplete"
        table.add_row(row.weights, row.node, state, _shown_bytes(row), (row.manifest or "-")[:16])
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    for row in rows:
        if row.why:
            console.print(f"{row.weights} on {row.node}: {row.why}", markup=False)


def show_manifests(found: list[tuple[str, Source]]) -> None:
    """Prints the hash to pin and what it stands for."""
    console = Console(highlight=False, soft_wrap=True)
    for name, source in found:
        manifest = source.examined.manifest
        console.print(f"[bold]{name}[/bold]  manifest: {manifest.hash}")
        console.print(
            f"  {len(manifest.files)} files, {manifest.size_bytes:,} bytes, {len(manifest.links)} links, layout "
            f"{manifest.layout}, in {source.folder} on {source.party.node}",
            markup=False,
        )
        for path, file in manifest.content().items():
            console.print(f"  {file.sha256}  {file.size_bytes:>15,}  {path}", markup=False)


def _rows(delivery: Delivery) -> list[Row]:
    found = held(delivery)
    lacking = _missing_bytes(delivery, found)
    return [
        Row(delivery.plan.name, node, state.complete, state.manifest, 0 if state.complete else lacking[node], state.why)
        for node, state in found.items()
    ]


def _missing_bytes(delivery: Delivery, found: dict[str, Held]) -> dict[str, int | None]:
    """Returns what each node lacks; without a receipt anywhere nobody can say more than the catalogue's size."""
    reference = next((node for node, state in found.items() if state.manifest), None)
    if reference is None:
        return dict.fromkeys(found, delivery.plan.size_bytes)
    if all(state.complete for state in found.values()):
        return {}
    inspected = missing_files(delivery, manifest_of_node(delivery, reference), deep=False)
    return {node: one.missing_bytes for node, one in inspected.items()}


def _deep_rows(delivery: Delivery, report: Report) -> list[Row]:
    found = held(delivery)
    reference = next((node for node, state in found.items() if state.manifest), None)
    if reference is None:
        return _rows(delivery)
    report(f"{delivery.plan.name}: every node reads all its files")
    inspected = missing_files(delivery, manifest_of_node(delivery, reference), deep=True)
    for node, one in inspected.items():
        if one.missing and found[node].manifest:
            distrust(delivery, node, one.missing)
    return [
        Row(
            delivery.plan.name,
            node,
            found[node].complete and not one.missing,
            found[node].manifest,
            one.missing_bytes,
            _named(one.missing) or found[node].why,
        )
        for node, one in inspected.items()
    ]


def _named(paths: tuple[str, ...]) -> str | None:
    if not paths:
        return None
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    return f"{', '.join(paths[:_MOST_NAMED])}{more} absent or with other bytes"


def _shown_bytes(row: Row) -> str:
    return "all" if row.missing_bytes is None else f"{row.missing_bytes:,}"
