"""Nodes that are folders of this machine: verbs run in this process, and a transfer copies files and is recorded."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.errors import OperationError
from ops.transfers import Inspection, Received, Receiver, TransferFile
from ops.weights import Delivery
from runtime.common.file_hashes import sha256_of
from runtime.node import weights as node_weights
from runtime.node import weights_sources
from runtime.node.errors import NodeTaskError
from spec.connection import Connection
from spec.party import Party
from spec.release import WeightsPlan, WeightsSource
from tests.checkpoints import REVISION

VERBS = {
    "weights-status": node_weights.status,
    "weights-held": node_weights.held_manifest,
    "weights-manifest": node_weights.make_manifest,
    "weights-finish": node_weights.finish,
    "weights-distrust": node_weights.distrust,
    "weights-adopt": weights_sources.adopt,
    "weights-share": weights_sources.share,
}
FABRIC = "203.0.113.1"
_PATHS = ("folder", "receipt", "source_folder", "storage_folder")


@dataclass
class Nodes:
    """Nodes that are folders of one machine.

    Attributes:
        root: holds a folder a node.
        transfers: what was sent: from where, and to whom.
        addresses: at which they were reached.
        verbs: what the nodes were asked.
    """

    root: Path
    transfers: list[tuple[str, list[str]]] = field(default_factory=list)
    addresses: list[list[str]] = field(default_factory=list)
    verbs: list[tuple[str, str]] = field(default_factory=list)

    def ask(self, party: Party, verb: str, asked: dict[str, Any], *_: Any) -> Any:
        self.verbs.append((party.node, verb))
        placed = {key: self.place(party, value) if key in _PATHS else value for key, value in asked.items()}
        try:
            return VERBS[verb](placed)
        except NodeTaskError as error:
            raise OperationError(f"{party.node}: {error}") from None

    def place(self, party: Party, path: str) -> str:
        return path if party.connection is None else f"{self.root}/{party.node}{path}"

    def fan_out(
        self, source: Party, folder: str, receivers: Sequence[Receiver], files: Sequence[TransferFile], _: Any
    ) -> dict[str, Received]:
        self.transfers.append((source.node, [receiver.party.node for receiver in receivers]))
        self.addresses.append([receiver.party.address for receiver in receivers])
        for receiver in receivers:
            for file in files:
                target = Path(self.place(receiver.party, receiver.folder), file.path)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(Path(self.place(source, folder), file.path), target)
        size = sum(file.size_bytes for file in files)
        return {receiver.party.node: Received(receiver.party.node, size, 0) for receiver in receivers}

    def inspect(
        self, receivers: Sequence[Receiver], files: Sequence[TransferFile], deep: bool
    ) -> dict[str, Inspection]:
        self.verbs += [(receiver.party.node, f"inspect, deep={deep}") for receiver in receivers]
        return {receiver.party.node: self._inspected(receiver, files) for receiver in receivers}

    def _inspected(self, receiver: Receiver, files: Sequence[TransferFile]) -> Inspection:
        folder = Path(self.place(receiver.party, receiver.folder))
        lacking = [
            one for one in files if not (folder / one.path).is_file() or sha256_of(folder / one.path) != one.sha256
        ]
        size = sum(one.size_bytes for one in lacking)
        return Inspection(receiver.party.node, 0, size, tuple(one.path for one in lacking))


def connection(node: str) -> Connection:
    return Connection(
        node=node,
        address="192.0.2.1",
        user="root",
        port=22,
        host_key="ssh-ed25519 AAAA",
        identity_file=None,
        connect_timeout_seconds=1,
    )


def delivery(*names: str, **chosen: Any) -> Delivery:
    plan = WeightsPlan(
        **{
            "name": "tiny",
            "revision": REVISION,
            "repository": "owner/tiny",
            "manifest": None,
            "layout": "flat",
            "size_bytes": None,
            "requires": ("config",),
            "required_files": (),
            "source": WeightsSource(kind="controller", folder=f"models/{REVISION}"),
            "folder": "/storage/weights/tiny/one",
            "receipt": "/storage/weights/tiny/one.receipt.json",
            "target": "/model",
            "path": "/model",
            **chosen,
        }
    )
    switches = {"d": "far"}
    parties = {
        name: Party(
            node=name,
            connection=connection(name),
            storage_folder="/storage",
            address=FABRIC,
            switch=switches.get(name, "near"),
        )
        for name in names
    }
    return Delivery(plan, parties)


def node_source(node: str, folder: str, kind: Any = "node") -> WeightsSource:
    return WeightsSource(kind=kind, folder=folder, connection=connection(node), address="192.0.2.9", switch="near")
