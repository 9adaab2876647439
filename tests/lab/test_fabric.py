"""The virtual fabric as it is: real nodes, real ssh, real Docker engines in them."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import fabric, places, processes
from lab.docker_engine import DockerEngine, existing_engine
from lab.errors import LabError
from lab.keys import host_key, public_line
from lab.locks import exclusive
from lab.mounts import mount_points
from lab.node import container_name
from lab.packages import missing
from lab.private_engine import PrivateEngine
from lab.ssh import ssh_command
from spec.cluster import Cluster

_NAME = "fabrictest"
_NODES = ("fabrictest-1", "fabrictest-2")
_ROOT = Path(__file__).parents[2]
_SLOW_GBIT = 0.2
# A transfer from one node to another through plain sockets, timed at its receiver.
_RECEIVE = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 5001))
print("listening", flush=True)
connection, _peer = listener.accept()
start, total = time.monotonic(), 0
while block := connection.recv(1 << 20):
    total += len(block)
print(total, time.monotonic() - start)
"""
_SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 5001)) as connection:
    for _ in range(int(sys.argv[2])):
        connection.sendall(bytes(1 << 20))
"""
_IMPORT_TINY_IMAGE = (
    "tar -ch -C / $(ldd /usr/bin/sleep | grep -o '/[^ ]*') /usr/bin/sleep 2>/dev/null | docker import - tiny"
)
_UP_ALONE = """
import sys
from pathlib import Path
from lab import fabric
from spec.cluster import Cluster
cluster = Cluster.model_validate_json(Path(sys.argv[1]).read_text())
fabric.up("fabrictest", cluster, report=lambda text: print(text, flush=True))
"""


def _silent(text: str) -> None:
    del text


def _node(number: int) -> dict[str, object]:
    return {
        "management_address": f"198.51.100.{200 + number}",
        "host_key": public_line(host_key(_NODES[number])),
        "switch": "virtual",
        "rails": [{"address": f"198.51.100.{216 + number}", "interface": "rail0"}],
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return Cluster.model_validate(
        {
            "hardware": "virtual",
            "ssh": {"identity_file": str(tmp_path_factory.mktemp("keys") / "id_ed25519"), "connect_timeout_seconds": 5},
            "virtual_fabric": {"management_subnet": "198.51.100.192/28", "rail_subnets": ["198.51.100.208/28"]},
            "nodes": {name: _node(number) for number, name in enumerate(_NODES)},
        }
    )


@pytest.fixture(scope="module", autouse=True)
def _removed_at_the_end() -> Iterator[None]:
    fabric.down(_NAME, report=_silent)
    yield
    fabric.down(_NAME, report=_silent)


@pytest.fixture
def nodes(cluster: Cluster) -> Cluster:
    """The cluster with its nodes up and their links without limit."""
    fabric.up(_NAME, cluster, report=_silent)
    return cluster


def _engine() -> DockerEngine:
    engine = existing_engine()
    assert engine is not None
    return engine


def _docker(*arguments: str) -> str:
    return _engine().docker(*arguments, what="look at the test's nodes")


def _on(cluster: Cluster, node: str, command: str) -> str:
    done = subprocess.run(
        [*ssh_command(cluster, node), command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _python_on(cluster: Cluster, node: str, program: str, *arguments: str) -> subprocess.Popen[str]:
    command = [*ssh_command(cluster, node), "python3 -c", f"'{program}'", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _containers(**labels: str) -> dict[str, str]:
    """Start times of containers by their ids."""
    filters = [part for name, value in labels.items() for part in ("--filter", f"label=gb10-serving.{name}={value}")]
    ids = _docker("ps", "--all", "--quiet", "--no-trunc", *filters).split()
    return {identity: _docker("inspect", "--format", "{{.State.StartedAt}}", identity) for identity in ids}


def _seconds_to_send(cluster: Cluster, mebibytes: int) -> float:
    address = cluster.nodes[_NODES[1]].rails[0].address
    with _python_on(cluster, _NODES[1], _RECEIVE, address) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "listening\n"
        with _python_on(cluster, _NODES[0], _SEND, address, str(mebibytes)) as sender:
            assert sender.wait(timeout=120) == 0
        total, seconds = receiver.stdout.read().split()
    assert int(total) == mebibytes << 20
    return float(seconds)


def test_all_nodes_answer(nodes: Cluster) -> None:
    statuses = fabric.status(_NAME, nodes)
    assert [seen.name for seen in statuses] == list(_NODES)
    assert all(seen.ready for seen in statuses)
    assert statuses[1].management_address == "198.51.100.201"
    assert statuses[1].rail_addresses == ("198.51.100.217",)


def test_a_login_needs_the_pinned_host_key(nodes: Cluster) -> None:
    assert _on(nodes, _NODES[0], "hostname") == f"{_NODES[0]}\n"
    wrong = nodes.nodes[_NODES[0]].model_copy(update={"host_key": nodes.nodes[_NODES[1]].host_key})
    mistaken = nodes.model_copy(update={"nodes": {**nodes.nodes, _NODES[0]: wrong}})
    done = subprocess.run([*ssh_command(mistaken, _NODES[0]), "true"], capture_output=True, text=True, check=False)
    assert done.returncode == 255
    assert "verification failed" in done.stderr


def test_passwords_are_not_asked_for(nodes: Cluster) -> None:
    settings = _on(nodes, _NODES[0], "sshd -T")
    assert "passwordauthentication no" in settings
    assert "kbdinteractiveauthentication no" in settings
    assert "maxstartups 200:30:400" in settings


def test_docker_works_over_ssh(nodes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    *options, _target = ssh_command(nodes, _NODES[0])
    quoted = " ".join(f"'{option}'" for option in options[1:])
    (tmp_path / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh {quoted} "$@"\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    node = DockerEngine(f"ssh://root@{nodes.nodes[_NODES[0]].management_address}")
    assert node.docker("info", "--format", "{{.Name}}", what="ask a node's engine") == f"{_NODES[0]}\n"


def test_the_rails_have_their_names_and_reach_each_other(nodes: Cluster) -> None:
    for name in _NODES:
        (interface,) = json.loads(_on(nodes, name, "ip -json address show dev rail0"))
        addresses = [entry["local"] for entry in interface["addr_info"] if entry["family"] == "inet"]
        assert addresses == [nodes.nodes[name].rails[0].address]
    assert _seconds_to_send(nodes, 1) > 0


def test_nothing_leads_out_of_the_fabric(nodes: Cluster) -> None:
    connect = "python3 -c \"import socket; socket.create_connection(('192.0.2.1', 80), 5)\" 2>&1 || true"
    assert "No route to host" in _on(nodes, _NODES[0], connect)


def test_shared_memory_is_as_large_as_the_cluster_says(nodes: Cluster) -> None:
    size = _on(nodes, _NODES[0], "df --block-size=1 --output=size /dev/shm").split()[1]
    assert int(size) == nodes.limits.shared_memory_bytes


def test_a_limited_link_is_slower(nodes: Cluster) -> None:
    unlimited = _seconds_to_send(nodes, 64)
    before = _containers(fabric=_NAME)
    statuses = fabric.up(_NAME, nodes, link_gbit=_SLOW_GBIT, report=_silent)
    assert [seen.link_gbit for seen in statuses] == [_SLOW_GBIT, _SLOW_GBIT]
    assert _containers(fabric=_NAME) == before
    assert _seconds_to_send(nodes, 64) > 3 * unlimited
    assert [seen.link_gbit for seen in fabric.up(_NAME, nodes, report=_silent)] == [None, None]


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_node_comes_back_from_a_reboot(nodes: Cluster, how: str) -> None:
    node = _NODES[0]
    fabric.up(_NAME, nodes, link_gbit=_SLOW_GBIT, report=_silent)
    _on(nodes, node, f"{_IMPORT_TINY_IMAGE} && docker rm --force stays 2>&1")
    _on(
        nodes, node, "docker run --detach --name stays --restart unless-stopped --network host tiny /usr/bin/sleep 9999"
    )
    container = container_name(_NAME, node)
    commands = {"restart": [["restart", "--time", "2"]], "kill": [["kill"], ["start"]]}[how]
    for command in commands:
        _docker(*command, container)
    (seen,) = _wait_until_ready(nodes, node)
    assert seen.link_gbit == _SLOW_GBIT
    running = _on(
        nodes, node, "for i in $(seq 50); do docker ps --format '{{.Names}}' | grep . && break; sleep 0.2; done"
    )
    assert running == "stays\n"
    assert _seconds_to_send(nodes, 1) > 0


def _wait_until_ready(cluster: Cluster, node: str) -> list[fabric.NodeStatus]:
    end = time.monotonic() + 60
    while True:
        seen = [status for status in fabric.status(_NAME, cluster) if status.name == node]
        if seen[0].ready:
            return seen
        assert time.monotonic() < end, seen
        time.sleep(0.2)


def test_up_again_changes_nothing(nodes: Cluster) -> None:
    before = _containers(fabric=_NAME)
    told: list[str] = []
    fabric.up(_NAME, nodes, report=told.append)
    assert _containers(fabric=_NAME) == before
    assert told == []


def test_a_missing_node_is_added_and_a_hanging_one_goes_on(nodes: Cluster) -> None:
    first, second = (container_name(_NAME, node) for node in _NODES)
    survivor = _docker("inspect", "--format", "{{.Id}}", first)
    _docker("rm", "--force", "--volumes", second)
    _docker("pause", first)
    assert [seen.running for seen in fabric.status(_NAME, nodes)] == [False, False]
    assert all(seen.ready for seen in fabric.up(_NAME, nodes, report=_silent))
    assert _docker("inspect", "--format", "{{.Id}}", first) == survivor


def test_folders_of_this_machine_are_seen_read_only(nodes: Cluster, tmp_path: Path) -> None:
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown/file").write_text("seen")
    fabric.up(_NAME, nodes, binds=[(tmp_path / "shown", "/opt/shown")], report=_silent)
    assert (
        _on(nodes, _NODES[1], "cat /opt/shown/file; touch /opt/shown/new 2>/dev/null || echo refused")
        == "seenrefused\n"
    )
    with pytest.raises(LabError, match="there is no such folder"):
        fabric.up(_NAME, nodes, binds=[(tmp_path / "absent", "/opt/absent")], report=_silent)


def test_two_cannot_change_a_fabric_at_once(nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric, "_LOCK_PATIENCE_SECONDS", 0.5)
    with (
        exclusive(places.lock_folder() / f"fabric-{_NAME}", "hold it", 5),
        pytest.raises(LabError, match="another process holds"),
    ):
        fabric.up(_NAME, nodes, report=_silent)


def test_a_failed_up_takes_back_what_it_made(cluster: Cluster) -> None:
    fabric.down(_NAME, report=_silent)
    gateway = cluster.nodes[_NODES[1]].model_copy(update={"management_address": "198.51.100.193"})
    impossible = cluster.model_copy(update={"nodes": {**cluster.nodes, _NODES[1]: gateway}})
    with pytest.raises(LabError, match=f"make virtual node {_NODES[1]}"):
        fabric.up(_NAME, impossible, report=_silent)
    _assert_nothing_is_left()


def test_up_works_after_an_up_that_was_killed(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(cluster.model_dump_json())
    moments = random.Random(7)
    for last_words in (f"make node {_NODES[0]}", f"make node {_NODES[1]}"):
        for _ in range(2):
            fabric.down(_NAME, report=_silent)
            _kill_an_up_after(last_words, moments.uniform(0, 0.8), tmp_path / "cluster.json")
            assert all(seen.ready for seen in fabric.up(_NAME, cluster, report=_silent))


def _kill_an_up_after(last_words: str, seconds: float, cluster: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _UP_ALONE, str(cluster)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    ) as child:
        assert child.stdout is not None
        assert last_words in (line.strip() for line in child.stdout)
        time.sleep(seconds)
        child.send_signal(signal.SIGKILL)


def test_an_engine_that_was_killed_starts_again_and_leaves_nothing(nodes: Cluster, tmp_path: Path) -> None:
    # Where the nodes are on an engine that was here before, this one runs beside it, and has to be possible.
    assert os.geteuid() == 0, "an engine of our own needs root: run this test as root"
    assert missing(["dockerd", "containerd", "runc"]) == [], "an engine of our own needs them: install docker.io"
    engine = PrivateEngine(tmp_path / "run", tmp_path / "data")
    try:
        engine.start(_silent)
        for name in ("dockerd", "containerd"):
            process = processes.recorded_alive(engine.run_folder / f"{name}.process")
            assert process is not None
            os.kill(process.number, signal.SIGKILL)
        engine.start(_silent)
        assert engine.answers
    finally:
        engine.stop()
    assert not engine.run_folder.exists()
    assert mount_points(tmp_path) == []
    assert str(tmp_path) not in subprocess.check_output(["ps", "-e", "-o", "args"], text=True)
    assert all(seen.ready for seen in fabric.status(_NAME, nodes))


def test_down_leaves_nothing(nodes: Cluster) -> None:
    networks = [identity[:12] for identity in _engine().labelled("network", _NAME)]
    fabric.down(_NAME, report=_silent)
    _assert_nothing_is_left()
    links = {link["ifname"] for link in json.loads(subprocess.check_output(["ip", "-json", "link"]))}
    assert not links & {f"br-{identity}" for identity in networks}
    assert not any(seen.running for seen in fabric.status(_NAME, nodes))


def _assert_nothing_is_left() -> None:
    engine = existing_engine()
    if engine is not None:
        for kind in ("container", "network", "volume"):
            assert engine.labelled(kind, _NAME) == []
        return
    assert not places.ENGINE_RUN_FOLDER.exists()
    assert mount_points(places.ENGINE_DATA_FOLDER) == []
    assert str(places.ENGINE_RUN_FOLDER) not in subprocess.check_output(["ps", "-e", "-o", "args"], text=True)
