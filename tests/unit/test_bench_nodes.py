"""What a pass does to nodes, and whether the traffic went where a stack asks; settings beside the sources'."""

from pathlib import Path
from typing import Any

import pytest

from ops.bench.comparing import references_of
from ops.bench.observing import ObservedNode, fabric_faults, node_use, observed_nodes
from ops.bench.record import Method, Pass, Run, Setup
from ops.stacks import planned, situation_of
from runtime.measure.observe import observe
from spec.reference_settings import differences, settings_of

MB = 1_000_000


def write(root: Path, path: str, text: str) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"{text}\n")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    write(tmp_path, "proc/meminfo", "MemTotal: 100 kB\nMemAvailable: 64 kB")
    for interface, (received, sent) in {"lo": (5, 5), "rail0": (100, 20)}.items():
        write(tmp_path, f"sys/class/net/{interface}/statistics/rx_bytes", str(received))
        write(tmp_path, f"sys/class/net/{interface}/statistics/tx_bytes", str(sent))
    counters = "sys/class/infiniband/rocep1s0f0/ports/1/counters"
    write(tmp_path, f"{counters}/port_xmit_data", "1000")
    write(tmp_path, f"{counters}/port_rcv_data", "500")
    write(tmp_path, "sys/class/thermal/thermal_zone0/temp", "61500")
    return tmp_path


def test_a_node_is_read_whole_and_says_what_it_cannot_read(tree: Path) -> None:
    seen = observe(tree)
    # RDMA ports count in words of four bytes.
    assert seen["bytes_by_device"] == {"lo": 10, "rail0": 120, "rocep1s0f0": 6000}
    assert seen["available_bytes"] == 64 * 1024
    assert seen["hottest_celsius"] == 61.5
    assert seen["cpu_mhz"] is None
    assert "processor clock: the kernel shows no cpufreq" in seen["unread"]


def sample(available_bytes: int, **bytes_by_device: int) -> dict[str, Any]:
    nothing = dict.fromkeys(("gpu_mhz", "gpu_celsius", "gpu_watts", "cpu_mhz", "hottest_celsius"))
    return {"available_bytes": available_bytes, "bytes_by_device": bytes_by_device, "unread": [], **nothing}


def use(node: ObservedNode, **moved: int) -> Any:
    before = dict.fromkeys(moved, 7)
    after = {device: count + 7 for device, count in moved.items()}
    return node_use(node, [(0.0, sample(50, **before)), (1.0, sample(20, **after)), (2.0, sample(40, **after))])


def test_a_use_is_what_was_moved_since_the_first_look() -> None:
    found = use(ObservedNode(1, 2, ("rail0",)), rail0=3 * MB, eth0=MB, lo=9 * MB)
    assert found.bytes_by_device == {"rail0": 3 * MB, "eth0": MB, "lo": 9 * MB}
    assert found.lowest_available_bytes == 20
    assert (found.samples[-1].rail_bytes, found.samples[-1].other_bytes) == (3 * MB, MB)


HEAD, WORKER = ObservedNode(0, 2, ("rail0",)), ObservedNode(1, 2, ("rail0",))


@pytest.mark.parametrize(
    ("node", "moved", "is_found"),
    [
        (WORKER, {"rail0": 90 * MB, "eth0": MB}, False),
        (WORKER, {"rail0": MB, "eth0": 90 * MB}, True),
        (WORKER, {"rail0": 0, "eth0": 0}, True),
        (HEAD, {"rail0": MB, "eth0": 90 * MB}, False),  # its clients come over eth0
        (HEAD, {"rail0": 0, "eth0": 90 * MB}, True),
        (ObservedNode(0, 1, ("rail0",)), {"rail0": 0, "eth0": MB}, False),  # one rank has nobody to talk to
        (ObservedNode(1, 2, ("roce0",)), {"roce0": 90 * MB, "rail0": MB}, False),
        (ObservedNode(1, 2, ("roce0",)), {"roce0": 0, "rail0": 90 * MB}, True),  # RoCE that fell back to sockets
    ],
)
def test_traffic_over_the_wrong_interface_is_found(node: ObservedNode, moved: dict[str, int], is_found: bool) -> None:
    found = fabric_faults({"gb10-2": node}, {"gb10-2": use(node, **moved)})
    assert bool(found) == is_found
    assert all("gb10-2" in text and "fabric check" in text for text in found)


def test_rails_are_devices_with_rdma_and_interfaces_without() -> None:
    assert observed_nodes(situation_of("qwen-pool"))["gb10-3"].rails == ("rocep1s0f1", "roceP2p1s0f1")
    assert observed_nodes(situation_of("glm53-ethernet"))["eth-1"].rails == ("enp1s0f0np0",)
    pool = observed_nodes(situation_of("lab-pool"))
    assert [(name, node.rank, node.ranks) for name, node in pool.items()] == [
        ("lab-1", 0, 2),
        ("lab-2", 1, 2),
        ("lab-3", 0, 2),
        ("lab-4", 1, 2),
    ]


def test_a_stack_is_laid_beside_the_references_of_its_model() -> None:
    settings = settings_of(situation_of("qwen-tp4"), planned("qwen-tp4")).model_dump(mode="json")
    assert settings["model"] == "qwen38-flash-next-radixark-nvfp4"
    assert (settings["nodes"], settings["tensor_parallel"], settings["expert_parallel"]) == (4, 4, True)
    assert (settings["draft_method"], settings["draft_tokens"]) == ("mtp", 4)
    assert settings["hcas"] == ["rocep1s0f0", "roceP2p1s0f0"]
    method = Method(
        decode_tokens=256,
        prefill_tokens=8900,
        streams=(6,),
        repetitions=3,
        thinking="off",
        seed=1,
        refused_fields=(),
        notes=(),
    )
    run = Run(
        identifier="x",
        started="2026-11-30T00:00:00Z",
        program="p",
        setup=Setup(name="qwen-tp4", addresses={}, served_name="q", engine_version=None, settings=settings),
        method=method,
        passes=(Pass(name="warm", faults=(), doubts=()),),
        quality=None,
        findings=(),
    )
    by_title = {comparison.second.title: comparison for comparison in references_of(run)}
    winner, more_drafts = by_title["seed-000: qwen_tp4_ep"], by_title["seed-000: qwen_tp4_ep_mtp6"]
    assert not any(text.startswith(("draft_tokens", "nodes", "tensor_parallel")) for text in winner.differs)
    assert "draft_tokens: 4 against 6" in more_drafts.differs
    assert not any("glm" in title for title in by_title)


def test_what_one_side_does_not_state_does_not_differ() -> None:
    assert differences({"a": 1, "b": None, "c": 3}, {"a": 2, "b": 5, "c": None}) == ["a: 1 against 2"]
