"""Transfers between real nodes over ssh and their fabric: processes killed, a link cut, a disk that is full."""

import hashlib
import random
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ops import fan_out as fan_out_module
from ops.errors import OperationError
from ops.fan_out import FanOut, Member
from ops.remote import run_on_node, ssh_command
from ops.transfers import Receiver, TransferFile, fan_out, inspect
from spec.catalog import Catalog
from spec.cluster import Cluster
from spec.connection import connection_to
from spec.party import Party
from tests.virtual import NODES

SOURCE = "/var/tmp/transfer/source"
TARGET = "/var/tmp/transfer/model"
SIZE = 24 << 20

_KILL = (
    "for p in /proc/[0-9]*; do ls -l $p/fd 2>/dev/null | grep -q '.model.transfer/lock' && echo ${p#/proc/}; done | "
    "{ROWS} | xargs -r kill -9 || true"
)
"""A process that ended by itself meanwhile needs no kill."""


class Nodes:
    """The four nodes: the first is the source."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.said: list[str] = []
        self.files = [_zeros(f"model-{number} of 4.safetensors", SIZE + number) for number in range(4)]
        self.files += [_zeros(f"small/{number}.json", number) for number in range(20)]

    def party(self, node: str) -> Party:
        described = self.cluster.nodes[node]
        storage = self.cluster.storage_folder
        return Party(
            node=node,
            connection=connection_to(self.cluster, node),
            storage_folder=storage,
            address=described.rails[0].address,
            switch=described.switch,
        )

    @property
    def receivers(self) -> list[Receiver]:
        return [Receiver(self.party(node), TARGET) for node in NODES[1:]]

    def run(self, node: str, text: str) -> str:
        command = ssh_command(connection_to(self.cluster, node), text)
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def carry(self, receivers: list[Receiver], degree: int | None = 1) -> dict[str, Member]:
        with FanOut(self.party(NODES[0]), SOURCE, receivers, self.files, self.said.append, degree) as transfer:
            return transfer.run()

    def assert_right(self, node: str, complete: bool = True) -> None:
        """Every file under its name is right; with `complete`, every file is there."""
        listed = "\n".join(f"{file.sha256}  {TARGET}/{file.path}" for file in self.files)
        flags = "" if complete else "--ignore-missing"
        self.run(node, f"sha256sum --quiet {flags} --check - <<'E' || [ '{flags}' ]\n{listed}\nE")


def _zeros(path: str, size: int) -> TransferFile:
    digest = hashlib.sha256(bytes(size)).hexdigest()
    return TransferFile(path, size, digest)


@pytest.fixture
def nodes(virtual_nodes: Catalog) -> Iterator[Nodes]:
    made = Nodes(virtual_nodes.cluster("test"))
    sizes = "".join(f"truncate -s {file.size_bytes} '{SOURCE}/{file.path}'\n" for file in made.files)
    made.run(NODES[0], f"mkdir -p {SOURCE}/small\n{sizes}")
    yield made
    for node in NODES:
        made.run(node, f"umount {TARGET.rpartition('/')[0]} 2>/dev/null; rm -rf /var/tmp/transfer")


@pytest.mark.parametrize("seed", range(3))
def test_killed_on_a_real_node_and_repeated(nodes: Nodes, seed: int) -> None:
    """kill -9 of everything of the transfer on the middle or last receiver, or of one process, some time into it."""
    chance = random.Random(seed)
    victim = NODES[2 + seed % 2]
    rows = chance.choice(["cat", "head -1", "tail -1"])

    def kill() -> None:
        text = _KILL.replace("{ROWS}", rows)
        nodes.run(victim, f"for n in $(seq 200); do [ -e {TARGET} ] && break; sleep 0.02; done; sleep 0.{seed}; {text}")

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        nodes.carry(nodes.receivers)
    except OperationError as error:
        nodes.said.append(str(error))
    killer.join()
    for node in NODES[1:]:
        nodes.assert_right(node, complete=False)
    nodes.carry(nodes.receivers)
    for node in NODES[1:]:
        nodes.assert_right(node)


def test_the_fabric_link_of_the_middle_node_is_cut_and_restored(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fan_out_module, "SILENCE_SECONDS", 2)
    start = FanOut._run_round

    def cut_then_run(transfer: FanOut, members: list[Member]) -> None:
        if len(members) == 3:
            nodes.run(NODES[2], "ip link set rail0 down")
        start(transfer, members)

    monkeypatch.setattr(FanOut, "_run_round", cut_then_run)
    try:
        with pytest.raises(OperationError, match=rf"cannot send to {NODES[2]}"):
            nodes.carry(nodes.receivers)
    finally:
        nodes.run(NODES[2], "ip link set rail0 up")
    for node in (NODES[1], NODES[3]):
        nodes.assert_right(node)
    monkeypatch.undo()
    done = nodes.carry(nodes.receivers)
    nodes.assert_right(NODES[2])
    assert done[NODES[1]].moved_bytes == done[NODES[3]].moved_bytes == 0


def test_a_disk_that_is_full_on_one_node(nodes: Nodes) -> None:
    """There is room for the bytes, but not for so many files, which no check before the transfer sees."""
    nodes.run(NODES[3], "mkdir -p /var/tmp/transfer; mount -t tmpfs -o size=200m,nr_inodes=12 none /var/tmp/transfer")
    with pytest.raises(OperationError, match=rf"{NODES[3]}.*No space left on device"):
        nodes.carry(nodes.receivers)
    for node in NODES[1:3]:
        nodes.assert_right(node)
    nodes.assert_right(NODES[3], complete=False)
    nodes.run(NODES[3], "mount -o remount,nr_inodes=1000 /var/tmp/transfer")
    nodes.carry(nodes.receivers)
    nodes.assert_right(NODES[3])


def test_nodes_meet_on_their_fabric_addresses_only(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    note = FanOut._note_look
    refused: list[str] = []

    def try_management(transfer: FanOut, member: Member, event: dict[str, Any]) -> None:
        note(transfer, member, event)
        if member.port:
            address = nodes.cluster.nodes[member.node].management_address
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((address, member.port), timeout=5)
            refused.append(member.node)

    monkeypatch.setattr(FanOut, "_note_look", try_management)
    nodes.carry(nodes.receivers[:1])
    assert set(refused) == {NODES[1]}


def test_a_thousand_files_on_four_nodes_are_looked_at_and_not_moved(nodes: Nodes) -> None:
    """The controller is the source, so that all four nodes receive."""
    nodes.files = [_zeros(f"{number}.json", 3) for number in range(1000)]
    receivers = [Receiver(nodes.party(node), TARGET) for node in NODES]
    for node in NODES:
        nodes.run(node, f"mkdir -p {TARGET}; cd {TARGET}; for n in $(seq 0 999); do printf '\\0\\0\\0' > $n.json; done")
    source = Party(node="controller", connection=None, storage_folder="/nowhere", address="127.0.0.1", switch="none")
    for _ in range(2):
        done = fan_out(source, "/nowhere", receivers, nodes.files, nodes.said.append)
        assert {(received.moved_bytes, received.present_bytes) for received in done.values()} == {(0, 3000)}
    assert {found.missing for found in inspect(receivers, nodes.files, deep=True).values()} == {()}


def test_the_runtime_is_put_on_a_node_that_lacks_it(nodes: Nodes) -> None:
    nodes.run(NODES[1], f"rm -rf {nodes.cluster.storage_folder}/runtime")
    nodes.carry(nodes.receivers[:1])
    nodes.assert_right(NODES[1])
    assert run_on_node(connection_to(nodes.cluster, NODES[1]), nodes.cluster.storage_folder, "facts", {})
