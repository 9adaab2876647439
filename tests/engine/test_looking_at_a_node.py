"""This machine looked at over a real ssh server on loopback, as a controller looks at a node."""

import json
import queue
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.bench.observing import Observation, ObservedNode
from ops.doctor.examining import judge
from ops.node_session import NodeSession
from ops.remote import NodeError, run_on_node, ssh_command
from ops.stacks import planned
from spec.connection import Connection
from tests.engine.loopback_ssh import ssh_server


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    folder = tmp_path_factory.mktemp("ssh")
    with ssh_server(folder) as server:
        yield Connection(
            node="here",
            address="127.0.0.1",
            user=server.user,
            port=server.port,
            host_key=server.host_key,
            identity_file=str(folder / "client"),
            connect_timeout_seconds=60,
        )


def test_the_doctor_answers_every_check(node: Connection, tmp_path: Path) -> None:
    (tmp_path / "claim.json").write_text('{"stack": "gone", "group": "main", "since": "today"}')
    answer = run_on_node(
        node,
        str(tmp_path),
        "doctor",
        {
            "gpus": 0,
            "rails": [{"address": "127.0.0.77", "interface": "nothing0"}],
            "storage_folder": str(tmp_path),
            "open_files": 1024,
            "locked_memory_bytes": 65536,
            "shared_memory_bytes": 1 << 20,
            "controller_seconds": time.time(),
            "delay_seconds": 60,
        },
    )
    examination = judge({"here": answer})
    ids = {found.id for found in examination.findings}
    assert "rail-address-missing" in ids
    asked = {one["check"] for one in examination.unasked}
    assert "claim-without-rank" in ids or "leftovers" in asked
    assert "clock-skewed" not in ids


def test_the_fabric_is_looked_at_and_a_node_reaches_itself(node: Connection, tmp_path: Path) -> None:
    password, heard = secrets.token_hex(32), queue.Queue[dict[str, Any]]()
    session = NodeSession(
        "here",
        node,
        str(tmp_path),
        "runtime.fabric_check",
        "listen",
        {"addresses": ["127.0.0.1"], "ports_each": 2, "password": password},
        lambda _, event: heard.put(event),
    )
    try:
        event = heard.get(timeout=120)
        targets = [{"node": "here", "address": "127.0.0.1", "port": port} for port in event["ports"]["127.0.0.1"]]
        asked = {"source": "127.0.0.1", "targets": targets, "password": password, "stream_seconds": 0}
        answers = run_on_node(node, str(tmp_path), "fabric-connect", asked)
    finally:
        session.close()
    assert [answer["why"] for answer in answers] == [None, None]
    assert heard.get(timeout=120) == {"event": "ended", "reason": None}


def test_a_node_is_observed_from_the_first_to_the_last_moment(node: Connection, tmp_path: Path) -> None:
    release = planned("lab")
    plan = release.nodes["lab-1"].model_copy(update={"connection": node})
    here = release.model_copy(update={"nodes": {"here": plan}, "storage_folder": str(tmp_path)})
    observation = Observation(here, {"here": ObservedNode(0, 1, ("lo",))})
    use = observation.stop()["here"]
    assert len(use.samples) >= 2
    assert use.samples[-1].rail_bytes > 0
    assert use.lowest_available_bytes > 0
    assert json.loads(use.model_dump_json())["rails"] == ["lo"]


def test_tasks_share_one_connection_but_only_with_who_knows_the_node_by_the_same_key(
    node: Connection, tmp_path: Path
) -> None:
    def port_of_the_client() -> str:
        command = ssh_command(node, "echo $SSH_CONNECTION")
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[1]

    assert port_of_the_client() == port_of_the_client()
    another = node.model_copy(update={"host_key": "ssh-ed25519 " + node.host_key.split()[1][:-4] + "AAAA"})
    with pytest.raises(NodeError, match="does not show the host key that its cluster file pins"):
        run_on_node(another, str(tmp_path), "facts", {})


def test_a_cache_folder_too_deep_for_a_socket_only_costs_time(
    node: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GB10_SERVING_CACHE", f"/tmp/{'deep' * 20}")
    command = ssh_command(node, "echo here")
    assert not any("Control" in word for word in command)
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "here\n"
