"""The doctor on trees that stand for nodes: a sound one has no finding, each planted fault has its own."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from ops.doctor.examining import judge, patients
from ops.doctor_verbs import exit_code
from ops.errors import OperationError
from ops.stacks import CATALOG
from runtime.doctor.examine import CHECKS, examine_node
from runtime.doctor.look import CouldNotAsk, Look

RAILS = [{"address": "203.0.113.11", "interface": "rail0"}, {"address": "203.0.113.211", "interface": "rail1"}]
LIMITS = (
    "Limit  Soft  Hard  Units\nMax open files  1024  1048576  files\nMax locked memory  unlimited  unlimited  bytes\n"
)
CONTAINER = {
    "Name": "/main-lab-1-rank0",
    "Config": {"Labels": {"gb10-serving.stack": "glm53", "gb10-serving.group": "main"}},
    "State": {"Running": True, "Status": "running"},
    "HostConfig": {"RestartPolicy": {"Name": "unless-stopped"}, "NetworkMode": "host"},
}


@dataclass
class FakeNode:
    """A sound GB10 node as files and as answers of programs; a test spoils it."""

    root: Path
    containers: list[dict[str, Any]] = field(default_factory=lambda: [json.loads(json.dumps(CONTAINER))])
    answers: dict[str, str] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.write("proc/meminfo", "MemTotal: 127600000 kB\nMemAvailable: 90000000 kB\nSwapTotal: 16777216 kB\n")
        self.write("proc/sys/vm/swappiness", "0\n")
        self.write("proc/sys/vm/min_free_kbytes", "45056\n")
        self.write("proc/sys/kernel/osrelease", "6.17.0-1029-nvidia\n")
        self.write("proc/net/route", "Iface Destination Gateway\nlan0 00000000 0101A8C0\n")
        self.write("proc/self/mounts", "/dev/nvme0n1p2 / ext4 rw 0 0\n")
        self.write("proc/driver/nvidia/version", "NVRM version: 580.173.02\n")
        self.process(100, "dockerd", ["/usr/bin/dockerd"])
        self.write("proc/100/limits", LIMITS)
        self.write("proc/100/status", "Name: dockerd\nCapEff:\t0000000000000000\n")
        self.write("etc/ssh/sshd_config", "# MaxSessions 1\nPermitRootLogin yes\n")
        self.write("dev/shm/here", "")
        self.write("var/lib/gb10-serving/claim.json", '{"stack": "glm53", "group": "main", "since": "2026-11-30"}')
        self.answers |= {
            "docker version": "28.1.1\n",
            "docker info --format {{json .}}": json.dumps({"Runtimes": {"runc": {}, "nvidia": {}}}),
            "docker info --format {{json .DriverStatus}}": "[]",
            "ip": json.dumps(
                [_interface("lan0", "192.0.2.11"), *(_interface(r["interface"], r["address"]) for r in RAILS)]
            ),
            "nvidia-smi --query-gpu=name": "NVIDIA GB10\n",
            "nvidia-smi --query-gpu=index,clocks.max.sm": "0, 3003, 2400, 95\n",
            "nvidia-smi --query-gpu=index,clocks.applications": "0, [N/A], 3003\n",
            "nvidia-smi --query-compute-apps": "",
        }
        self.request |= {
            "gpus": 1,
            "rails": RAILS,
            "storage_folder": "/var/lib/gb10-serving",
            "open_files": 1048576,
            "locked_memory_bytes": -1,
            "shared_memory_bytes": 1,
            "controller_seconds": time.time(),
            "delay_seconds": 600,
            "user_id": os.geteuid(),
        }

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def process(self, number: int, name: str, words: Sequence[str]) -> None:
        self.write(f"proc/{number}/comm", f"{name}\n")
        self.write(f"proc/{number}/cmdline", "\0".join(words) + "\0")

    def run(self, command: Sequence[str]) -> str:
        text = " ".join(command)
        if text.startswith("docker ps"):
            return "\n".join(str(place) for place, _ in enumerate(self.containers))
        if text.startswith("docker container inspect"):
            return json.dumps(self.containers)
        known = [answer for beginning, answer in self.answers.items() if text.startswith(beginning)]
        if not known:
            raise CouldNotAsk(f"this node has no {command[0]}")
        return known[-1]

    def examine(self) -> dict[str, Any]:
        return examine_node(Look(self.request, self.root, self.run))

    def ids(self) -> list[str]:
        return [found["id"] for found in self.examine()["findings"]]


def _interface(name: str, *addresses: str) -> dict[str, Any]:
    held = [{"family": "inet6" if ":" in one else "inet", "local": one, "prefixlen": 25} for one in addresses]
    return {"ifname": name, "addr_info": held}


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


def test_a_sound_node_has_no_finding(node: FakeNode) -> None:
    answer = node.examine()
    assert answer["findings"] == []
    assert answer["unasked"] == []
    assert answer["facts"]["driver"] == "NVRM version: 580.173.02"
    assert answer["facts"]["image_store"] == "classic"


def _earlyoom(node: FakeNode) -> None:
    node.process(7, "earlyoom", ["/usr/bin/earlyoom", "-r", "3600"])


def _swappiness(node: FakeNode) -> None:
    node.write("proc/sys/vm/swappiness", "60\n")


def _no_swap(node: FakeNode) -> None:
    node.write("proc/meminfo", "MemTotal: 127600000 kB\nSwapTotal: 0 kB\n")


def _min_free(node: FakeNode) -> None:
    node.write("proc/sys/vm/min_free_kbytes", "3145728\n")


def _shared_memory(node: FakeNode) -> None:
    node.request["shared_memory_bytes"] = 1 << 60


def _old_docker(node: FakeNode) -> None:
    node.answers["docker version"] = "19.03.15\n"


def _no_runtime(node: FakeNode) -> None:
    node.answers["docker info --format {{json .}}"] = json.dumps({"Runtimes": {"runc": {}}})


def _open_files(node: FakeNode) -> None:
    node.write("proc/100/limits", LIMITS.replace("1048576", "524288"))


def _locked_memory(node: FakeNode) -> None:
    node.write("proc/100/limits", LIMITS.replace("unlimited  unlimited", "8388608  8388608"))


def _leftover(node: FakeNode) -> None:
    node.containers[0]["State"] = {"Running": False, "Status": "exited"}


def _claim_without_rank(node: FakeNode) -> None:
    node.containers = []


def _rank_without_claim(node: FakeNode) -> None:
    (node.root / "var/lib/gb10-serving/claim.json").unlink()


def _stranger(node: FakeNode) -> None:
    other = json.loads(json.dumps(CONTAINER))
    other["Name"], other["Config"]["Labels"] = "/vllm_glm53", {}
    node.containers.append(other)


def _no_gpu(node: FakeNode) -> None:
    del node.answers["nvidia-smi --query-gpu=name"]


def _clock_low(node: FakeNode) -> None:
    node.answers["nvidia-smi --query-gpu=index,clocks.max.sm"] = "0, 3003, 513, 96\n"


def _other_process(node: FakeNode) -> None:
    node.answers["nvidia-smi --query-compute-apps"] = "4711, /usr/bin/gnome-shell, 512\n"


def _addresses(node: FakeNode, **spoilt: Sequence[str]) -> None:
    held = {"lan0": ["192.0.2.11"], "rail0": ["203.0.113.11"], "rail1": ["203.0.113.211"]} | spoilt
    node.answers["ip"] = json.dumps([_interface(name, *addresses) for name, addresses in held.items()])


def _wrong_rail(node: FakeNode) -> None:
    _addresses(node, rail0=["203.0.113.12"])


def _only_ipv6(node: FakeNode) -> None:
    _addresses(node, rail0=["fe80::1"])


def _duplicate(node: FakeNode) -> None:
    _addresses(node, lan0=["192.0.2.11", "203.0.113.11"])


def _one_network(node: FakeNode) -> None:
    node.request["rails"] = [RAILS[0], {"address": "203.0.113.12", "interface": "rail1"}]
    _addresses(node, rail1=["203.0.113.12"])


def _wifi(node: FakeNode) -> None:
    (node.root / "sys/class/net/lan0/wireless").mkdir(parents=True)


def _nccl_conf(node: FakeNode) -> None:
    node.write("etc/nccl.conf", "# old\nNCCL_IB_GID_INDEX=3\n")


def _sessions(node: FakeNode) -> None:
    node.write("etc/ssh/sshd_config.d/10-hard.conf", "MaxSessions 2\n")


def _starts(node: FakeNode) -> None:
    node.write("etc/ssh/sshd_config", "MaxStartups 3:50:10\n")


def _skewed(node: FakeNode) -> None:
    node.request["controller_seconds"] -= 3600


def _remote(node: FakeNode) -> None:
    node.write("proc/self/mounts", "/dev/sda / ext4 rw 0 0\nhead:/w /var/lib/gb10-serving nfs4 rw 0 0\n")


def _in_memory(node: FakeNode) -> None:
    node.write("proc/self/mounts", "/dev/sda / ext4 rw 0 0\ntmpfs /var/lib tmpfs rw 0 0\n")


def _foreign_owner(node: FakeNode) -> None:
    node.request["user_id"] = os.geteuid() + 1


PLANTED = {
    "earlyoom-runs": _earlyoom,
    "swappiness-not-zero": _swappiness,
    "no-swap": _no_swap,
    "min-free-raised": _min_free,
    "shared-memory-small": _shared_memory,
    "docker-too-old": _old_docker,
    "no-nvidia-runtime": _no_runtime,
    "docker-open-files": _open_files,
    "docker-locked-memory": _locked_memory,
    "leftover-container": _leftover,
    "claim-without-rank": _claim_without_rank,
    "rank-without-claim": _rank_without_claim,
    "stranger-restarts": _stranger,
    "gpu-not-visible": _no_gpu,
    "gpu-clock-low": _clock_low,
    "gpu-other-process": _other_process,
    "rail-address-missing": _wrong_rail,
    "rail-only-ipv6": _only_ipv6,
    "duplicate-address": _duplicate,
    "rails-share-a-network": _one_network,
    "default-route-over-wifi": _wifi,
    "leftover-nccl-conf": _nccl_conf,
    "ssh-few-sessions": _sessions,
    "ssh-few-starts": _starts,
    "clock-skewed": _skewed,
    "weights-on-the-network": _remote,
    "weights-in-memory": _in_memory,
    "cache-of-another-user": _foreign_owner,
}


@pytest.mark.parametrize("ailment", PLANTED)
def test_a_planted_fault_is_the_one_finding(node: FakeNode, ailment: str) -> None:
    PLANTED[ailment](node)
    assert node.ids() == [ailment]
    examination = judge({"gb10-1": node.examine()})
    found = examination.findings[0]
    assert found.id == ailment
    assert "{" not in found.cure + found.why
    assert exit_code(examination) == 1


def test_every_ailment_of_the_catalogue_is_planted_or_found_between_nodes() -> None:
    between = {"kernels-differ", "drivers-differ", "dockers-differ", "image-stores-differ", "address-on-two-nodes"}
    fabric = set(yaml.safe_load((CATALOG.folder / "doctor/fabric.yaml").read_text()))
    assert set(CATALOG.ailments()) - fabric == {*PLANTED, *between, "disk-full"}


def test_ten_faults_are_ten_findings_and_no_others(node: FakeNode) -> None:
    planted = ["earlyoom-runs", "swappiness-not-zero", "min-free-raised", "docker-open-files", "leftover-container"]
    planted += ["stranger-restarts", "gpu-clock-low", "duplicate-address", "leftover-nccl-conf", "ssh-few-sessions"]
    for ailment in planted:
        PLANTED[ailment](node)
    assert sorted(node.ids()) == sorted(planted)


def test_a_full_disk_is_found(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.doctor.storage._LEAST_FREE_BYTES", 1 << 80)
    assert node.ids() == ["disk-full"]


def test_what_cannot_be_asked_is_an_answer_of_its_own(node: FakeNode) -> None:
    node.answers = {name: answer for name, answer in node.answers.items() if not name.startswith("ip")}
    (node.root / "proc/meminfo").write_text("nonsense\n")
    answer = node.examine()
    assert answer["findings"] == []
    assert {one["check"] for one in answer["unasked"]} == {"rails", "duplicate-addresses", "swap", "min-free"}
    assert all(one["check"] in CHECKS for one in answer["unasked"])


def test_an_earlyoom_with_a_low_floor_is_let_be(node: FakeNode) -> None:
    node.process(7, "earlyoom", ["/usr/bin/earlyoom", "-m", "2", "-s", "80"])
    assert node.ids() == []


def test_an_idle_gpu_may_be_slow(node: FakeNode) -> None:
    node.answers["nvidia-smi --query-gpu=index,clocks.max.sm"] = "0, 3003, 208, 0\n"
    assert node.ids() == []


def test_nodes_are_compared(node: FakeNode) -> None:
    first = node.examine()
    node.write("proc/sys/kernel/osrelease", "6.11.0\n")
    node.answers["docker info --format {{json .DriverStatus}}"] = '[["driver-type","io.containerd.snapshotter.v1"]]'
    node.write("proc/driver/nvidia/version", "NVRM version: 570.1\n")
    node.answers["docker version"] = "27.0.0\n"
    examination = judge({"gb10-1": first, "gb10-2": node.examine()})
    ids = sorted({found.id for found in examination.findings})
    assert ids == ["address-on-two-nodes", "dockers-differ", "drivers-differ", "image-stores-differ", "kernels-differ"]
    assert examination.findings[0].severity == "error"


def test_a_router_needs_no_claim(node: FakeNode) -> None:
    router = json.loads(json.dumps(CONTAINER))
    router["Name"], router["Config"]["Labels"] = "/gb10-pool-router", {"gb10-serving.stack": "pool"}
    node.containers.append(router)
    assert node.ids() == []


def test_an_address_twice_on_one_node_is_not_on_two_nodes(node: FakeNode) -> None:
    _addresses(node, lan0=["192.0.2.11", "203.0.113.11"])
    assert [found.id for found in judge({"gb10-1": node.examine()}).findings] == ["duplicate-address"]


def test_a_node_that_cannot_be_reached_is_no_sound_one() -> None:
    examination = judge({"gb10-1": "gb10-1 (192.0.2.11) does not answer ssh within 10 s."})
    assert examination.as_data()["could_not_ask"][0]["check"] == "node"
    assert examination.findings == ()
    assert exit_code(examination) == 4


def test_nodes_are_chosen_by_name_cluster_or_stack() -> None:
    assert [patient.name for patient in patients([], None, "qwen-tp2")] == ["gb10-1", "gb10-2"]
    assert [patient.name for patient in patients(["lab-2"], None, None)] == ["lab-2"]
    assert {patient.cluster_name for patient in patients([], None, None)} >= {"lab"}
    assert "gb10-six" not in {patient.cluster_name for patient in patients([], None, None)}
    with pytest.raises(OperationError, match=r"no node nobody; the catalogue has: .*lab-1"):
        patients(["nobody"], None, None)
