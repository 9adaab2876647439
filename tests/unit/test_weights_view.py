"""`fleet weights`: what is shown of the nodes, and the exit codes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ops import weights as weights_ops
from ops import weights_view
from ops.cli import app
from ops.errors import OperationError
from ops.weights import Delivery, bring
from tests.checkpoints import REVISION, checkpoint, write_flat
from tests.folder_nodes import Nodes, delivery

SHARD = "model-00001-of-00002.safetensors"


def quiet(_: str) -> None:
    pass


@pytest.fixture
def goods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Delivery:
    made = Nodes(tmp_path / "nodes")
    for name, fake in (("_ask", made.ask), ("fan_out", made.fan_out), ("inspect", made.inspect)):
        monkeypatch.setattr(weights_ops, name, fake)
    monkeypatch.setattr(weights_ops, "_own_address", lambda _: "192.0.2.100")
    monkeypatch.setenv("GB10_SERVING_CACHE", str(tmp_path / "cache"))
    write_flat(tmp_path / "cache" / "models" / REVISION, checkpoint())
    found = delivery("a", "b")
    monkeypatch.setattr(weights_view, "deliveries", lambda *_: [found])
    return found


def run(*arguments: str) -> tuple[int, Any]:
    result = CliRunner().invoke(app, ["weights", *arguments], catch_exceptions=False)
    return result.exit_code, json.loads(result.stdout) if "--json" in arguments else result.stdout


@pytest.mark.usefixtures("goods")
def test_before_the_first_transfer_nobody_has_anything() -> None:
    code, rows = run("status", "any", "--json")
    assert code == 0
    assert [(row["node"], row["complete"], row["missing_bytes"]) for row in rows] == [
        ("a", False, None),
        ("b", False, None),
    ]
    assert run("verify", "any")[0] == 1


def test_what_lacks_is_counted_from_a_receipt(goods: Delivery, tmp_path: Path) -> None:
    bring(goods, quiet)
    shard = tmp_path / f"nodes/b{goods.plan.folder}/{SHARD}"
    size = shard.stat().st_size
    shard.unlink()
    _, rows = run("status", "any", "--json")
    assert [(row["node"], row["complete"], row["missing_bytes"]) for row in rows] == [
        ("a", True, 0),
        ("b", False, size),
    ]
    code, text = run("verify", "any")
    assert code == 1
    assert "tiny on b: /storage/weights" in text.replace(str(tmp_path / "nodes/b"), "")
    assert f"{SHARD} is not there" in text
    assert run("sync", "any")[0] == 0
    assert run("verify", "any")[0] == 0


def test_reading_everything_finds_and_keeps_in_mind_what_stat_cannot_see(goods: Delivery, tmp_path: Path) -> None:
    bring(goods, quiet)
    shard = tmp_path / f"nodes/b{goods.plan.folder}/{SHARD}"
    before = shard.stat()
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert run("verify", "any")[0] == 0
    code, rows = run("verify", "any", "--deep", "--json")
    assert code == 1
    assert [row["why"] for row in rows] == [None, f"{SHARD} absent or with other bytes"]
    assert run("verify", "any")[0] == 1
    assert run("sync", "any")[0] == 0
    assert run("verify", "any", "--deep")[0] == 0


@pytest.mark.usefixtures("goods")
def test_a_manifest_can_be_made_of_another_folder(tmp_path: Path) -> None:
    code, found = run("manifest", "any", "--json")
    assert code == 0
    other = write_flat(tmp_path / "other", checkpoint(bytes_each=7))
    _, changed = run("manifest", "any", "--folder", str(other), "--json")
    assert found["tiny"]["hash"] != changed["tiny"]["hash"]
    assert f"manifest: {changed['tiny']['hash']}" in run("manifest", "any", "--folder", str(other))[1]


def test_a_model_that_the_stack_has_not_is_told() -> None:
    with pytest.raises(OperationError, match="--model other: the stack lab has lab"):
        weights_view.deliveries("lab", "other")
    assert [one.plan.name for one in weights_view.deliveries("glm53", None)] == [
        "glm53-flash-nvidia-nvfp4",
        "glm53-flash-dflash2",
    ]
