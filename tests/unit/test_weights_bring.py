"""Who gives the weights to whom, and when nothing is done: nodes are folders here, and copying is only recorded."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ops import weights as weights_ops
from ops.errors import OperationError
from ops.weights import CONTROLLER, bring, manifest_of_node, missing
from runtime.node import weights_sources
from spec.party import Party
from spec.release import WeightsSource
from tests.checkpoints import REVISION, checkpoint, write_flat, write_hub
from tests.folder_nodes import FABRIC, Nodes, delivery, node_source


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    made = Nodes(tmp_path / "nodes")
    monkeypatch.setattr(weights_ops, "_ask", made.ask)
    monkeypatch.setattr(weights_ops, "fan_out", made.fan_out)
    monkeypatch.setattr(weights_ops, "inspect", made.inspect)
    monkeypatch.setattr(weights_ops, "_own_address", lambda _: "192.0.2.100")
    monkeypatch.setenv("GB10_SERVING_CACHE", str(tmp_path / "cache"))
    return made


def quiet(_: str) -> None:
    pass


@pytest.fixture
def on_controller(tmp_path: Path) -> Path:
    return write_flat(tmp_path / "cache" / "models" / REVISION, checkpoint())


@pytest.mark.usefixtures("on_controller")
def test_the_controller_sends_to_all_at_once_and_then_there_is_nothing_to_do(nodes: Nodes) -> None:
    first = bring(delivery("a", "b"), quiet)
    assert nodes.transfers == [(CONTROLLER, ["a", "b"])]
    nodes.verbs.clear()
    assert bring(delivery("a", "b"), quiet) == first
    assert len(nodes.transfers) == 1
    assert {verb for _, verb in nodes.verbs} == {"weights-status"}


@pytest.mark.usefixtures("on_controller")
def test_a_controller_that_is_not_on_the_fabric_sends_once(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_ops, "_own_address", lambda party: None if party.address == FABRIC else "192.0.2.100")
    bring(delivery("a", "b", "c"), quiet)
    assert nodes.transfers == [(CONTROLLER, ["a"]), ("a", ["b", "c"])]
    assert nodes.addresses == [["192.0.2.1"], [FABRIC, FABRIC]]


def test_another_node_gets_them_from_a_node_and_nobody_else_gets_anything(nodes: Nodes, on_controller: Path) -> None:
    bring(delivery("a", "d"), quiet)
    shutil.rmtree(on_controller)
    bring(delivery("a", "b", "d"), quiet)
    assert nodes.transfers[1:] == [("a", ["b"])]


@pytest.mark.usefixtures("on_controller")
def test_a_node_on_the_same_switch_gives_first(nodes: Nodes) -> None:
    bring(delivery("d", "a"), quiet)
    bring(delivery("d", "a", "b"), quiet)
    assert nodes.transfers[1:] == [("a", ["b"])]


@pytest.mark.usefixtures("on_controller")
def test_a_damaged_node_is_mended_from_another(nodes: Nodes) -> None:
    bring(delivery("a", "b"), quiet)
    (nodes.root / "a" / "storage/weights/tiny/one/config.json").unlink()
    bring(delivery("a", "b"), quiet)
    assert nodes.transfers[1:] == [("b", ["a"])]


@pytest.mark.usefixtures("nodes")
def test_absent_weights_are_told_with_the_way_to_get_them() -> None:
    with pytest.raises(OperationError, match=f"hf download owner/tiny --revision {REVISION} --local-dir"):
        bring(delivery("a"), quiet)
    with pytest.raises(OperationError, match=r"`\./fleet lab up` makes it"):
        bring(delivery("a", repository=None), quiet)


def test_a_node_of_the_deployment_that_has_them_links_and_sends(nodes: Nodes) -> None:
    write_hub(nodes.root / "a" / "home", checkpoint())
    source = node_source("a", "/home/models--owner--tiny")
    chosen = {"source": source, "layout": "huggingface"}
    bring(delivery("a", "b", **chosen), quiet)
    assert nodes.transfers == [("a", ["b"])]
    for node in ("a", "b"):
        config = nodes.root / node / f"storage/weights/tiny/one/snapshots/{REVISION}/config.json"
        assert config.is_symlink()
        assert config.read_bytes() == b"{}"
    blob = next((nodes.root / "a" / "home/models--owner--tiny/blobs").iterdir())
    assert blob.stat().st_nlink == 2


def test_a_node_outside_the_deployment_can_be_the_source(nodes: Nodes) -> None:
    write_flat(nodes.root / "z" / "home", checkpoint())
    bring(delivery("a", source=node_source("z", "/home")), quiet)
    assert nodes.transfers == [("z", ["a"])]
    assert not (nodes.root / "z" / "storage/weights").exists()


@pytest.mark.usefixtures("on_controller")
def test_a_pinned_manifest_is_held_against_the_source_before_anything_moves(nodes: Nodes) -> None:
    with pytest.raises(OperationError, match=rf"the controller holds \w+; catalog/models/tiny.yaml pins {'0' * 64}"):
        bring(delivery("a", manifest="0" * 64), quiet)
    assert nodes.transfers == []
    right = bring(delivery("a"), quiet).manifest
    assert bring(delivery("a", "b", manifest=right), quiet).manifest == right


def test_files_that_change_under_one_revision_are_refused(nodes: Nodes, on_controller: Path) -> None:
    bring(delivery("a"), quiet)
    (nodes.root / "a" / "storage/weights/tiny/one/config.json").unlink()
    (on_controller / "config.json").write_text("{ }")
    with pytest.raises(OperationError, match=r"is not everywhere the same: a holds \w+; the controller holds \w+"):
        bring(delivery("a", "b"), quiet)
    assert len(nodes.transfers) == 1


def test_a_share_is_looked_at_on_every_node_and_nothing_is_sent(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_sources, "mount_of", lambda *_: ("nas:/models", "nfs4", "/mnt"))
    for node in ("a", "b"):
        write_flat(nodes.root / node / "mnt/tiny", checkpoint())
    source = WeightsSource(kind="nfs", folder="/mnt/tiny", export="nas:/models")
    bring(delivery("a", "b", source=source, folder="/mnt/tiny"), quiet)
    assert nodes.transfers == []
    assert ("b", "weights-share") in nodes.verbs
    assert (nodes.root / "b" / "storage/weights/tiny/one.receipt.json").is_file()
    (nodes.root / "b" / "mnt/tiny/config.json").unlink()
    with pytest.raises(OperationError, match=r"b: .*config\.json is not there"):
        bring(delivery("a", "b", source=source, folder="/mnt/tiny"), quiet)


def test_a_share_is_read_again_when_it_is_asked_for(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_sources, "mount_of", lambda *_: ("nas:/models", "nfs4", "/mnt"))
    folder = write_flat(nodes.root / "a" / "mnt/tiny", checkpoint())
    source = WeightsSource(kind="nfs", folder="/mnt/tiny", export="nas:/models")
    goods = delivery("a", source=source, folder="/mnt/tiny")
    bring(goods, quiet)
    manifest = manifest_of_node(goods, "a")
    shard = folder / "model-00001-of-00002.safetensors"
    before = shard.stat()
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert missing(goods, manifest, deep=False)["a"].missing == ()
    assert missing(goods, manifest, deep=True)["a"].missing == (shard.name,)


def test_all_nodes_that_fail_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(party: Party, *_: Any) -> Any:
        raise OperationError(f"{party.node} does not answer")

    monkeypatch.setattr(weights_ops, "_ask", unreachable)
    with pytest.raises(OperationError, match="a does not answer\nb does not answer"):
        bring(delivery("a", "b"), quiet)
