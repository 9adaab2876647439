"""The weights of a deployment on real nodes: who gets what, what a preview says, what is found and mended."""

import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ops.remote import ssh_command
from ops.weights import Delivery, bring, delivery_of, distrust, held, manifest_of_node, missing
from spec.connection import connection_to
from spec.party import Party
from spec.plan import plan_release
from spec.release import WeightsSource
from tests.checkpoints import REPOSITORY, REVISION, checkpoint, write_hub
from tests.hub import hub
from tests.virtual import Project, cheap_deployment

CLIENT = """#!/bin/sh
PYTHONPATH=/opt/vllm exec python3 "$@"
"""
SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture(autouse=True)
def _without_weights(project: Project) -> Iterator[None]:
    """Other tests leave the weights on the nodes; these start without, and leave none of their own."""
    clear = "rm -rf /var/lib/gb10-serving/weights /var/lib/gb10-serving/hashes /root/hub"
    for node in project.cluster.nodes:
        project.on_node(node, clear)
    yield
    for node in project.cluster.nodes:
        project.on_node(node, clear)


def delivery(project: Project, deployment: dict[str, Any]) -> Delivery:
    release = plan_release("one", deployment, project.catalog)
    return delivery_of(release, release.weights[0])


def inodes(project: Project, node: str, folder: str) -> str:
    return project.on_node(node, f"find {folder} -type f -printf '%P %i %T@\\n' | sort")


def test_another_node_gets_its_bytes_from_a_node_and_the_others_keep_theirs(project: Project) -> None:
    deployment = cheap_deployment("test-1")
    first = project.preview_of("one", deployment)
    assert "cheap: all files (nobody says how large) each to test-1" in first.output
    assert project.up("one").code == 0
    folder = delivery(project, deployment).plan.folder
    before = inodes(project, "test-1", folder)
    assert SHARD in before

    deployment["groups"] = {"main": ["test-1"], "second": ["test-2"], "third": ["test-3"]}
    preview = project.preview_of("one", deployment)
    assert "cheap: 2.0 MiB each to test-2, test-3, less what is there; nothing to test-1" in preview.output
    assert "weights-cheap-test-1" not in preview.changed()
    run = project.up("one")
    assert run.code == 0, run.output
    assert inodes(project, "test-1", folder) == before
    assert {"weights-cheap", "weights-cheap-test-2", "weights-cheap-test-3"} <= run.changed()
    assert not {name for name in run.changed() if name.startswith("main-") or name == "weights-cheap-test-1"}
    for node in ("test-2", "test-3"):
        assert f"{node}: 2097" in run.output, "what came is told"
        assert len(inodes(project, node, folder).splitlines()) == len(before.splitlines())
    assert project.up("one").changed() == set()


def test_a_cache_on_a_node_becomes_a_snapshot_that_every_rank_can_read(project: Project, tmp_path: Path) -> None:
    revision = str(project.catalog.model("cheap").revision)
    write_hub(tmp_path, checkpoint(), revision, main=f"{revision}\n")
    send_folder(project, "test-3", tmp_path, "/root/hub")
    source = {"kind": "node", "node": "test-3", "folder": "/root/hub/models--owner--tiny"}
    deployment = cheap_deployment("test-1", "test-2") | {"weights": {"cheap": source}}
    run = project.up("one", deployment)
    assert run.code == 0, run.output
    assert "test-3: /root/hub/models--owner--tiny/refs/main ends with a newline" in run.output
    for rank, node in enumerate(("test-1", "test-2")):
        read = f"docker exec gb10-one-main-rank{rank} cat /model/snapshots/{revision}/config.json /model/refs/main"
        assert project.on_node(node, read) == f"{{}}{revision}"
    assert project.on_node("test-3", "cat /root/hub/models--owner--tiny/refs/main") == f"{revision}\n"
    assert "weights" not in project.on_node("test-3", "ls /var/lib/gb10-serving").split()


def test_a_dangling_link_at_the_source_stops_before_anything_moves(project: Project, tmp_path: Path) -> None:
    revision = str(project.catalog.model("cheap").revision)
    folder = write_hub(tmp_path, checkpoint(), revision)
    (folder / "snapshots" / revision / SHARD).resolve().unlink()
    send_folder(project, "test-1", tmp_path, "/root/hub")
    source = {"kind": "node", "node": "test-1", "folder": "/root/hub/models--owner--tiny"}
    run = project.up("one", cheap_deployment("test-1", "test-2") | {"weights": {"cheap": source}})
    assert run.code != 0
    assert f"{SHARD} is a link to ../../blobs/" in run.output
    assert "and there is nothing: a download was broken off" in run.output
    assert project.on_node("test-2", "ls /var/lib/gb10-serving/weights 2>/dev/null", check=False) == ""


def test_preflight_stops_a_change_on_a_damaged_node_and_a_sync_mends_it(project: Project) -> None:
    deployment = cheap_deployment("test-1", "test-2")
    assert project.up("one", deployment).code == 0
    goods = delivery(project, deployment)
    project.on_node("test-2", f"printf x >> {goods.plan.folder}/{SHARD}")
    deployment["engine"]["max_model_len"] = 513
    refused = project.up("one", deployment)
    assert refused.code != 0
    assert "`./fleet weights sync STACK` mends it" in refused.output
    assert project.ask("test-1") == "17 x 23 = 391"
    bring(goods, print)
    assert all(state.complete for state in held(goods).values())
    mended = project.up("one")
    assert mended.code == 0, mended.output


def test_a_flipped_byte_that_no_time_stamp_shows_is_found_by_reading_and_mended(project: Project) -> None:
    deployment = cheap_deployment("test-1", "test-2")
    goods = delivery(project, deployment)
    bring(goods, print)
    path = f"{goods.plan.folder}/{SHARD}"
    flip = f"cp -p {path} /tmp/was && printf x | dd of={path} bs=1 seek=999999 conv=notrunc && touch -r /tmp/was {path}"
    project.on_node("test-2", flip)
    assert all(state.complete for state in held(goods).values())
    found = missing(goods, manifest_of_node(goods, "test-1"), deep=True)
    assert {node: one.missing for node, one in found.items()} == {"test-1": (), "test-2": (SHARD,)}
    distrust(goods, "test-2", found["test-2"].missing)
    assert f"{SHARD} was found damaged" in (held(goods)["test-2"].why or "")
    bring(goods, print)
    again = missing(goods, manifest_of_node(goods, "test-1"), deep=True)
    assert all(one.missing == () for one in again.values())
    assert all(state.complete for state in held(goods).values())


def test_a_download_on_one_node_reaches_the_others(project: Project) -> None:
    goods = delivery(project, cheap_deployment("test-1", "test-2"))
    first = goods.parties["test-1"]
    project.on_node("test-1", f"printf '%s' '{CLIENT}' > /root/hf-python && chmod +x /root/hf-python")
    with hub(checkpoint(), own_address(first)) as server:
        source = WeightsSource(
            kind="huggingface",
            folder="/root/hub",
            connection=first.connection,
            address=first.address,
            switch=first.switch,
            python="/root/hf-python",
            endpoint=server.endpoint,
        )
        change = {"repository": REPOSITORY, "revision": REVISION, "layout": "huggingface", "source": source}
        goods = replace(goods, plan=goods.plan.model_copy(update=change))
        bring(goods, print)
    assert all(state.complete for state in held(goods).values())
    for node in ("test-1", "test-2"):
        read = f"cat {goods.plan.folder}/snapshots/{REVISION}/config.json {goods.plan.folder}/refs/main"
        assert project.on_node(node, read) == f"{{}}{REVISION}"
    assert project.on_node("test-2", "ls /root/hub 2>/dev/null", check=False) == ""


def own_address(party: Party) -> str:
    assert party.connection is not None
    with socket.create_connection((party.connection.address, party.connection.port), 5) as probe:
        return probe.getsockname()[0]


def send_folder(project: Project, node: str, folder: Path, target: str) -> None:
    packed = subprocess.run(["tar", "-C", str(folder), "-cf", "-", "."], capture_output=True, check=True).stdout
    command = ssh_command(connection_to(project.cluster, node), f"mkdir -p {target} && tar -C {target} -xf -")
    subprocess.run(command, input=packed, check=True, capture_output=True, timeout=60)
