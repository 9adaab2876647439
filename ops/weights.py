"""Brings the weights of a model to all nodes of a deployment, and says what is there and whether it is still right."""

import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ops.errors import OperationError
from ops.places import cache_folder
from ops.progress import Report
from ops.remote import run_on_node
from ops.transfers import Inspection, Receiver, TransferFile, fan_out, inspect
from runtime.common.errors import FilesError
from runtime.common.weights_folder import Examined, examine
from runtime.common.weights_manifest import Manifest
from spec.party import Party, party_of
from spec.release import Release, WeightsPlan

_HASHING_SECONDS = 4 * 3600
_DOWNLOAD_SECONDS = 24 * 3600
_CONNECT_SECONDS = 3
CONTROLLER = "the controller"

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Delivery:
    """The weights of one model and the nodes that need them.

    Attributes:
        plan: what, from where and to where.
        parties: the nodes by name.
    """

    plan: WeightsPlan
    parties: dict[str, Party]


@dataclass(frozen=True)
class Held:
    """What a node's receipt says.

    Attributes:
        complete: the receipt vouches for this revision, and all files look as they did.
        manifest: the hash that it names; none without a receipt.
        size_bytes: of all files; none without a receipt.
        why: it is incomplete.
    """

    complete: bool
    manifest: str | None
    size_bytes: int | None
    why: str | None


@dataclass(frozen=True)
class Source:
    """A folder from which the files can be fetched, with what is in it."""

    party: Party
    folder: str
    examined: Examined


def delivery_of(release: Release, plan: WeightsPlan) -> Delivery:
    """Returns the delivery of one of a Release's models to all nodes with a rank."""
    nodes = {name: release.nodes[name] for name in release.rank_nodes}
    return Delivery(plan, {name: party_of(node, release.storage_folder) for name, node in nodes.items()})


def held(delivery: Delivery) -> dict[str, Held]:
    """Asks every node what its receipt says; reads no weights.

    Raises:
        OperationError: a node cannot be reached.
    """
    asked = delivery.plan.receipt_request
    return on_each(delivery.parties, lambda party: Held(**_ask(party, "weights-status", asked)))


def bring(delivery: Delivery, report: Report) -> Held:
    """Makes every node of a delivery hold the weights; nothing is done where a receipt vouches for them.

    A node that holds them is the source for the others; only where none does, the source of the plan is asked.

    Raises:
        OperationError: the source has no whole checkpoint or another one than is pinned, or a node could not be served.
    """
    found = held(delivery)
    _refuse_another_identity(delivery.plan, {name: state.manifest for name, state in found.items()})
    if all(state.complete for state in found.values()):
        return next(iter(found.values()))
    lacking = {name: party for name, party in delivery.parties.items() if not found[name].complete}
    for name in lacking:
        report(f"{delivery.plan.name}: {name} needs them, {found[name].why}")
    source = _best_source(delivery, found, report)
    hashes = {name: state.manifest for name, state in found.items()}
    _refuse_another_identity(delivery.plan, {**hashes, source.party.node: source.examined.manifest.hash})
    _transfer(delivery.plan, source, lacking, report)
    manifest = source.examined.manifest
    return Held(True, manifest.hash, manifest.size_bytes, None)


def examine_source(delivery: Delivery, folder: Path | None, report: Report) -> Source:
    """Checks and hashes the source that the plan names, or another folder of the controller.

    Raises:
        OperationError: it holds no whole checkpoint.
    """
    found = _examined(delivery, folder, report)
    for note in found.examined.notes:
        report(f"{found.party.node}: {note}")
    return found


def manifest_of_node(delivery: Delivery, name: str) -> Manifest:
    """Returns the manifest that a node's receipt vouches for.

    Raises:
        OperationError: the node cannot be reached or has no receipt.
    """
    return _manifest(_ask(delivery.parties[name], "weights-held", {"receipt": delivery.plan.receipt}))


def missing(delivery: Delivery, manifest: Manifest, deep: bool) -> dict[str, Inspection]:
    """Says which files each node lacks; `deep` reads and hashes them all. To a share nothing is ever brought.

    Raises:
        OperationError: a node cannot be reached, or a share holds no whole checkpoint any more.
    """
    if delivery.plan.source.kind == "nfs":
        return on_each(delivery.parties, lambda party: _look_at_share(delivery.plan, party, manifest, deep))
    receivers = [Receiver(party, delivery.plan.folder) for party in delivery.parties.values()]
    return inspect(receivers, transfer_files(manifest), deep)


def distrust(delivery: Delivery, name: str, paths: tuple[str, ...]) -> None:
    """Notes on a node that files are damaged, so that the next `bring` fetches them again."""
    _ask(delivery.parties[name], "weights-distrust", {"receipt": delivery.plan.receipt, "paths": list(paths)})


def transfer_files(manifest: Manifest) -> list[TransferFile]:
    """Returns a manifest's regular files as the transfer knows them."""
    return [TransferFile(file.path, file.size_bytes, file.sha256) for file in manifest.files]


def on_each(parties: Mapping[str, Party], ask: Callable[[Party], Answer]) -> dict[str, Answer]:
    """Asks all nodes side by side.

    Raises:
        OperationError: naming every node that could not answer.
    """

    def answer(party: Party) -> Answer | OperationError:
        try:
            return ask(party)
        except OperationError as error:
            return error

    with ThreadPoolExecutor(max(1, len(parties))) as pool:
        answers = dict(zip(parties, pool.map(answer, parties.values()), strict=True))
    failed = [str(found) for found in answers.values() if isinstance(found, OperationError)]
    if failed:
        raise OperationError("\n".join(failed))
    return {name: found for name, found in answers.items() if not isinstance(found, OperationError)}


def _best_source(delivery: Delivery, found: dict[str, Held], report: Report) -> Source:
    """Takes a node that has everything, on the switch of one that lacks it if there is such a node."""
    complete = [name for name, state in found.items() if state.complete]
    if not complete or delivery.plan.source.kind == "nfs":
        return examine_source(delivery, None, report)
    switches = {delivery.parties[name].switch for name in found if name not in complete}
    name = next((name for name in complete if delivery.parties[name].switch in switches), complete[0])
    return Source(delivery.parties[name], delivery.plan.folder, Examined(manifest_of_node(delivery, name), []))


def _examined(delivery: Delivery, folder: Path | None, report: Report) -> Source:
    plan = delivery.plan
    if folder is not None or plan.source.kind == "controller":
        return _controller_source(delivery, folder, report)
    if plan.source.kind == "nfs":
        party = next(iter(delivery.parties.values()))
        _ask(party, "weights-share", {"folder": plan.folder, "export": plan.source.export})
        return _node_source(plan, party, plan.folder)
    party = _source_party(delivery)
    if plan.source.kind == "node":
        return _node_source(plan, party, plan.source.folder)
    asked = {
        "repository": plan.repository,
        "revision": plan.revision,
        "cache_folder": plan.source.folder,
        "python": plan.source.python,
        "endpoint": plan.source.endpoint,
    }
    return _node_source(plan, party, _ask(party, "weights-download", asked, _DOWNLOAD_SECONDS)["folder"])


def _controller_source(delivery: Delivery, folder: Path | None, report: Report) -> Source:
    plan = delivery.plan
    found = folder or cache_folder() / Path(plan.source.folder).expanduser()
    if not found.is_dir():
        raise OperationError(f"the weights are not on this controller: {found} does not exist. {_hint(plan, found)}")
    try:
        examined = examine(plan.model_dump(mode="json"), found, cache_folder() / "hashes", report)
    except FilesError as error:
        raise OperationError(f"{CONTROLLER}: {error}") from None
    return Source(_own_party(delivery), str(found), examined)


def _node_source(plan: WeightsPlan, party: Party, folder: str, read_all: bool = False) -> Source:
    asked = {"folder": folder, "storage_folder": party.storage_folder, "read_all": read_all}
    answer = _ask(party, "weights-manifest", plan.model_dump(mode="json") | asked, _HASHING_SECONDS)
    return Source(party, folder, Examined(_manifest(answer["manifest"]), answer["notes"]))


def _look_at_share(plan: WeightsPlan, party: Party, manifest: Manifest, deep: bool) -> Inspection:
    found = _node_source(plan, party, plan.folder, read_all=True).examined.manifest if deep else manifest
    wrong = tuple(file.path for file in manifest.files if file not in found.files)
    return Inspection(party.node, manifest.size_bytes, 0, wrong)


def _manifest(data: dict[str, Any]) -> Manifest:
    try:
        return Manifest.from_data(data)
    except FilesError as error:
        raise OperationError(str(error)) from None


def _transfer(plan: WeightsPlan, source: Source, lacking: dict[str, Party], report: Report) -> None:
    manifest = source.examined.manifest
    in_place = plan.source.kind == "nfs"
    if in_place:
        asked = {"folder": plan.folder, "export": plan.source.export}
        on_each(lacking, lambda party: _ask(party, "weights-share", asked))
    else:
        _copy(plan, source, lacking, report)
    finish = {"folder": plan.folder, "receipt": plan.receipt, "manifest": manifest.as_data(), "in_place": in_place}
    on_each(lacking, lambda party: _ask(party, "weights-finish", finish))


def _copy(plan: WeightsPlan, source: Source, lacking: dict[str, Party], report: Report) -> None:
    """Links what the source's own node needs and sends it to the others."""
    manifest = source.examined.manifest
    own = lacking.get(source.party.node)
    if own is not None and source.folder != plan.folder:
        asked = {"source_folder": source.folder, "folder": plan.folder, "manifest": manifest.as_data()}
        moved = _ask(own, "weights-adopt", asked, _HASHING_SECONDS)
        report(f"{own.node}: {moved['linked']} bytes by link, {moved['copied']} copied from {source.folder}")
    receivers = [party for name, party in lacking.items() if name != source.party.node]
    if not receivers:
        return
    if source.party.connection is None and _own_address(receivers[0]) is None:
        # A controller that is not on the fabric sends once, over the management network; the fabric does the rest.
        _send(source.party, source.folder, [_managed(receivers[0])], plan.folder, manifest, report)
        source, receivers = replace(source, party=receivers[0], folder=plan.folder), receivers[1:]
    if receivers:
        _send(source.party, source.folder, receivers, plan.folder, manifest, report)


def _send(source: Party, source_folder: str, to: list[Party], folder: str, manifest: Manifest, report: Report) -> None:
    receivers = [Receiver(party, folder) for party in to]
    for one in fan_out(source, source_folder, receivers, transfer_files(manifest), report).values():
        report(f"{one.node}: {one.moved_bytes} bytes came, {one.present_bytes} were there")


def _refuse_another_identity(plan: WeightsPlan, hashes: dict[str, str | None]) -> None:
    """All that hold a revision, and the catalogue, must mean the same files by it."""
    known = {f"{name} holds": found for name, found in hashes.items() if found}
    if plan.manifest:
        known[f"catalog/models/{plan.name}.yaml pins"] = plan.manifest
    if len(set(known.values())) <= 1:
        return
    said = "; ".join(f"{who} {found}" for who, found in known.items())
    way_out = (
        f"pin the right one under `manifest` in catalog/models/{plan.name}.yaml: nodes then keep both apart"
        if plan.repository
        else f"raise trained/recipe_version in catalog/models/{plan.name}.yaml"
    )
    raise OperationError(
        f"{plan.name} at revision {plan.revision} is not everywhere the same: {said}. A revision does not change. "
        f"Way out: correct the source that is wrong, or {way_out}"
    )


def _source_party(delivery: Delivery) -> Party:
    source = delivery.plan.source
    assert source.connection is not None
    assert source.address is not None
    known = delivery.parties.get(source.connection.node)
    return known or Party(
        node=source.connection.node,
        connection=source.connection,
        storage_folder=next(iter(delivery.parties.values())).storage_folder,
        address=source.address,
        switch=source.switch or "",
    )


def _own_party(delivery: Delivery) -> Party:
    """Returns this controller as a sender, with the address from which the first node is reached."""
    towards = next(iter(delivery.parties.values()))
    address = _own_address(towards) or _own_address(_managed(towards))
    if address is None:
        raise OperationError(f"this controller cannot open a connection to {towards.node} at {towards.address}")
    return Party(node=CONTROLLER, connection=None, storage_folder=str(cache_folder()), address=address, switch="")


def _own_address(towards: Party) -> str | None:
    """Returns the address from which this machine reaches the ssh server of a node, none if it does not."""
    assert towards.connection is not None
    try:
        with socket.create_connection((towards.address, towards.connection.port), _CONNECT_SECONDS) as probe:
            return probe.getsockname()[0]
    except OSError:
        return None


def _managed(party: Party) -> Party:
    """Returns a node at its management address."""
    assert party.connection is not None
    return party.model_copy(update={"address": party.connection.address})


def _hint(plan: WeightsPlan, folder: Path) -> str:
    if plan.repository is None:
        return "For the virtual fabric `./fleet lab up` makes it"
    return (
        f"Fetch them: `hf download {plan.repository} --revision {plan.revision} --local-dir {folder}`, or give "
        f"weights/{plan.name} in the stack file another source (docs/weights.md)"
    )


def _ask(party: Party, verb: str, asked: dict[str, Any], seconds: int = 120) -> dict[str, Any]:
    assert party.connection is not None
    return run_on_node(party.connection, party.storage_folder, verb, asked, timeout_seconds=seconds)
