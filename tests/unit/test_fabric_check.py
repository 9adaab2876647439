"""The fabric check: a real mesh on loopback, links as trees, and what measurements of sick fabrics mean."""

import json
import secrets
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ops.cli import app
from ops.fabric_check import checking
from ops.fabric_check.judging import Collective, Flow, Judge, nominal_gigabits
from ops.fabric_check.subject import find_subject
from ops.remote import NodeError
from ops.stacks import CATALOG
from runtime.fabric.addresses import InterfaceAddress
from runtime.fabric.resolving import Surroundings
from runtime.fabric_check.collective import container_command
from runtime.fabric_check.look import look_at_tree
from runtime.fabric_check.mesh import Listener, connect
from spec.connection import Connection
from tests.sysfs_tree import PortTable, Tree, pairs, write_tree

GIB = 1 << 30


@pytest.fixture
def judge() -> Judge:
    return Judge(CATALOG.ailments())


def request(listener: Listener, password: str, stream_seconds: float = 0) -> dict[str, Any]:
    targets = [{"node": "self", "address": "127.0.0.1", "port": port} for port in listener.ports["127.0.0.1"]]
    return {"source": "127.0.0.1", "targets": targets, "password": password, "stream_seconds": stream_seconds}


def test_a_node_reaches_itself_on_every_port() -> None:
    password = secrets.token_hex(32)
    listener = Listener(["127.0.0.1"], 3, password)
    answers = connect(request(listener, password))
    listener.close()
    assert [(answer["why"], answer["gigabits_per_second"]) for answer in answers] == [(None, None)] * 3


def test_a_stream_counts_what_arrived() -> None:
    password = secrets.token_hex(32)
    listener = Listener(["127.0.0.1"], 1, password)
    answers = connect(request(listener, password, 0.2))
    listener.close()
    assert answers[0]["why"] is None
    assert answers[0]["gigabits_per_second"] > 0


def test_a_stranger_and_a_closed_port_are_told() -> None:
    listener = Listener(["127.0.0.1"], 1, secrets.token_hex(32))
    assert connect(request(listener, secrets.token_hex(32)))[0]["why"]
    port = listener.ports["127.0.0.1"][0]
    listener.close()
    with socket.create_server(("127.0.0.1", 0)) as other:
        free = other.getsockname()[1]
    target = {"node": "gone", "address": "127.0.0.1", "port": free}
    asked = {"source": "127.0.0.1", "targets": [target], "password": "00" * 32, "stream_seconds": 0}
    assert connect(asked)[0]["why"] == "Connection refused"
    assert port != free


def roce_tree(tmp_path: Path, mtu: int = 9000, rate: str = "100 Gb/sec (4X EDR)", width: str = "4") -> dict[str, Any]:
    root = write_tree(
        tmp_path,
        Tree({"rail0": ("up", mtu)}, {"roce0:1": PortTable(pairs("rail0", "203.0.113.11"))}),
    )
    (root / "class/net/rail0/speed").write_text("100000\n")
    (root / "class/net/rail0/device").mkdir()
    for name, text in {"current_link_width": width, "max_link_width": "4"}.items():
        (root / "class/net/rail0/device" / name).write_text(f"{text}\n")
    (root / "class/infiniband/roce0/ports/1/rate").write_text(f"{rate}\n")
    rail = {"address": "203.0.113.11", "interface": "rail0", "hca": "roce0"}
    held = (InterfaceAddress("rail0", "203.0.113.11", 24),)
    surroundings = Surroundings(root, lambda: held, dict)
    return look_at_tree({"kind": "roce", "rails": [rail]}, surroundings)


def test_a_sound_link_is_read_whole(tmp_path: Path, judge: Judge) -> None:
    look = roce_tree(tmp_path)
    assert look["problems"] == []
    assert look["links"][0]["rate"] == "100 Gb/sec (4X EDR)"
    assert look["links"][0]["speed_megabits"] == 100_000
    assert look["indexes"] == [{"roce0:1": [1]}]
    assert "<- rail 0" in look["table"]
    assert judge.links({"one": look, "two": look}) == []
    assert nominal_gigabits([look]) == 100


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"mtu": 1500}, ["mtu-differs"]),
        ({"rate": "25 Gb/sec (1X EDR)"}, ["speeds-differ"]),
        ({"width": "2"}, ["pcie-narrow"]),
    ],
)
def test_links_are_compared(tmp_path: Path, judge: Judge, change: dict[str, Any], expected: list[str]) -> None:
    good, bad = roce_tree(tmp_path / "one"), roce_tree(tmp_path / "two", **change)
    assert [found.id for found in judge.links({"one": good, "two": bad})] == expected


def test_what_a_node_lacks_and_small_mtus_are_told(tmp_path: Path, judge: Judge) -> None:
    small = roce_tree(tmp_path / "small", mtu=1500)
    assert [found.id for found in judge.links({"one": small})] == ["mtu-small"]
    other = json.loads(json.dumps(small))
    other["indexes"] = [{"roce0:1": [5]}]
    assert "gid-indexes-differ-between-nodes" in [found.id for found in judge.links({"one": small, "two": other})]
    other["problems"] = [{"code": "hca-absent", "text": "there is no roce0", "way_out": "plug it in"}]
    found = judge.links({"two": other})[0]
    assert (found.id, found.read, found.cure) == ("hca-absent", "there is no roce0", "plug it in")


def flow(source: str, target: str, rate: float | None, why: str | None = None) -> Flow:
    return Flow(0, source, target, 40_000, "rail0", why, rate)


def test_a_blocked_port_names_who_cannot_reach_whom(judge: Judge) -> None:
    found = judge.flows([flow("one", "one", None, "Connection refused"), flow("one", "two", None)], {})
    assert [one.id for one in found] == ["mesh-blocked"]
    assert "one cannot reach port 40000 of one" in found[0].read


def test_a_slowed_link_is_found_with_its_figure(judge: Judge) -> None:
    flows = [flow("one", "two", 9.0), flow("two", "three", 8.0), flow("three", "one", 0.95)]
    found = judge.flows(flows, {})
    assert [(one.id, one.node) for one in found] == [("link-slow", "three")]
    assert "three to one 0.95 Gb/s, the other flows of this rail carry 8.50" in found[0].read


def test_links_that_are_all_slow_are_held_against_their_own_speed(judge: Judge) -> None:
    links = {(node, 0): {"speed_megabits": 100_000, "is_physical": True} for node in ("one", "two")}
    found = judge.flows([flow("one", "two", 11.8), flow("two", "one", 12.1)], links)
    assert [one.id for one in found] == ["link-slow", "link-slow"]
    assert judge.flows([flow("one", "two", 31.0), flow("two", "one", 28.0)], links) == []


def rates(judge: Judge, nominal: float | None = 100, **best: float) -> list[str]:
    measured = [
        Collective("main", variant.replace("_", " "), {GIB: rate}, {"one": "2.30.7", "two": "2.30.7"}, "nccl")
        for variant, rate in best.items()
    ]
    return [found.id for found in judge.collectives(measured, nominal)]


def test_the_figures_of_a_sound_fabric_are_no_finding(judge: Judge) -> None:
    """Seed 002: one root 95 to 111 Gb/s, both 175 to 191, Ring 180 to 191, Tree 55 to 93."""
    assert rates(judge, rail_0=98, rail_1=101, all_rails=188, Ring=185, Tree=74) == []


def test_the_latched_fabric_is_found_twice(judge: Judge) -> None:
    ids = rates(judge, rail_0=12.1, rail_1=98, all_rails=130, Ring=9, Tree=14)
    assert ids == ["tree-ahead-of-ring", "rail-latched"]
    assert rates(judge, nominal=10, rail_0=9.1) == []


def test_rails_that_share_are_found(judge: Judge) -> None:
    assert rates(judge, rail_0=98, rail_1=99, all_rails=102, Ring=102, Tree=60) == ["rails-do-not-add"]


def test_versions_of_nccl_are_compared(judge: Judge) -> None:
    one = Collective("main", "rail 0", {GIB: 98}, {"one": "2.30.7", "two": "2.29.7"}, "nccl")
    assert [found.id for found in judge.collectives([one], None)] == ["nccl-versions-differ"]


def test_the_container_is_the_ranks_own_but_for_what_it_runs() -> None:
    asked = {
        "environment": {"NCCL_NET": "IB", "NCCL_IB_HCA": "=a"},
        "mounts": [{"source": "/w", "target": "/model", "read_only": True}],
        "devices": ["/dev/infiniband"],
        "capabilities": ["CAP_IPC_LOCK"],
        "gpus": True,
        "processes": 1,
        "locked_memory_bytes": -1,
        "open_files": 1048576,
        "image": "gb10-serving/chain:1",
        "node": 1,
        "nodes": 2,
        "head": "203.0.113.11",
        "port": 20_001,
    }
    text = " ".join(container_command(asked, {"NCCL_IB_HCA": "=roce0:1", "NCCL_IB_GID_INDEX": "3"}))
    assert "--env NCCL_IB_HCA==roce0:1" in text
    assert "--env NCCL_IB_GID_INDEX=3" in text
    assert "--ulimit memlock=-1:-1" in text
    assert "--volume /w:/model:ro" in text
    assert "--pull never" in text
    assert text.endswith("--entrypoint python3 gb10-serving/chain:1 /gb10-serving/all_reduce.py")


class FakeNodes:
    """Nodes that answer as told: this is about the order of the steps, not about the network."""

    def __init__(self, serving: tuple[str, ...] = (), absent: str | None = None, unknown: str | None = None) -> None:
        self.serving, self.absent, self.unknown = serving, absent, unknown
        self.verbs: list[str] = []

    def run(self, connection: Connection, _folder: str, verb: str, asked: dict[str, Any], **_: Any) -> Any:
        self.verbs.append(verb)
        if connection.node == self.absent:
            raise NodeError(f"{connection.node} does not answer ssh")
        if verb == "fabric-look":
            link = {"interface": "rail0", "mtu_bytes": 1500, "speed_megabits": None, "is_physical": False}
            link |= {"hca": None, "rate": None, "pcie": dict.fromkeys(PCIE), "state": "up"}
            known = {"serving": None if self.unknown else list(self.serving), "serving_unknown": self.unknown}
            return {"problems": [], "table": "t", "links": [link], "indexes": [{}], **known}
        if verb == "fabric-connect":
            rate = 8.0 if asked["stream_seconds"] else None
            return [{**target, "why": None, "gigabits_per_second": rate} for target in asked["targets"]]
        return {"backend": "gloo", "nccl": None, "torch": "2.13", "gigabits_per_second": {"1048576": 5.0}}


PCIE = ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width")


class FakeSession:
    def __init__(self, node: str, *arguments: Any) -> None:
        self.node = node
        asked, deliver = arguments[4], arguments[5]
        ports = {address: [1, 2, 3] for address in asked["addresses"]}
        deliver(self, {"event": "listening", "ports": ports})

    def close(self) -> None:
        pass


def checked(monkeypatch: pytest.MonkeyPatch, nodes: FakeNodes, *options: str) -> tuple[int, dict[str, Any]]:
    monkeypatch.setattr(checking, "run_on_node", nodes.run)
    monkeypatch.setattr(checking, "NodeSession", FakeSession)
    done = CliRunner().invoke(app, ["fabric", "check", "lab", "--json", *options])
    return done.exit_code, json.loads(done.stdout)


def test_every_step_runs_on_a_free_fabric(monkeypatch: pytest.MonkeyPatch) -> None:
    code, data = checked(monkeypatch, FakeNodes())
    assert code == 0
    assert len([one for one in data["flows"] if one["gigabits_per_second"] is None]) == 2 * 2 * 3
    assert [(one["source"], one["target"]) for one in data["flows"] if one["gigabits_per_second"]] == [
        ("lab-1", "lab-2"),
        ("lab-2", "lab-1"),
    ]
    assert [one["variant"] for one in data["collectives"]] == ["rail 0"]


def test_it_does_not_disturb_what_serves_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = FakeNodes(serving=("main-lab-1-rank0",))
    code, data = checked(monkeypatch, nodes)
    assert code == 1
    assert "could disturb what serves" in data["left_out"][0]
    assert "fabric-all-reduce" not in nodes.verbs
    assert all(one["gigabits_per_second"] is None for one in data["flows"])
    assert checked(monkeypatch, nodes, "--disturb")[0] == 0
    assert "fabric-all-reduce" in nodes.verbs


def test_not_to_know_what_serves_is_no_licence(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = FakeNodes(unknown="Docker does not answer")
    code, data = checked(monkeypatch, nodes)
    assert code == 1
    assert "lab-1: Docker does not answer" in data["left_out"][0]
    assert "fabric-all-reduce" not in nodes.verbs


def test_a_node_that_cannot_be_asked_is_not_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    code, data = checked(monkeypatch, FakeNodes(absent="lab-2"))
    assert code == 1
    assert list(data["could_not_ask"]) == ["lab-2"]
    assert data["collectives"] == []


def test_rails_and_variants_follow_the_stack() -> None:
    subject = find_subject("glm53")
    assert [len(node.addresses) for node in subject.nodes] == [2, 2, 2, 2]
    names = [name for name, _, _ in checking._variants(subject)]
    assert names == ["rail 0", "rail 1", "all rails", "Ring", "Tree"]
    assert [name for name, _, _ in checking._variants(find_subject("glm53-tp4"))] == ["rail 0", "Ring", "Tree"]
    assert find_subject("gb10-six").release is None
