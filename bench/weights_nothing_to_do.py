"""How long it takes to find out that there is nothing to do: receipts against rsync, for many files on four nodes.

`.venv/bin/python bench/weights_nothing_to_do.py` makes four virtual nodes, brings the files there once and then asks,
in turns: receipt and stat (`ops.weights.bring`, what `up` and `weights status` do), a dry run of rsync over ssh to all
nodes side by side, and hashing everything again (`--deep`). The bar is design.md section 8: under 1 s.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))

from lab import fabric  # noqa: E402
from lab.keys import host_key, public_line  # noqa: E402
from ops.transfers import Party  # noqa: E402
from ops.weights import Delivery, bring, manifest_of_node, missing, on_each  # noqa: E402
from spec.cluster import Cluster  # noqa: E402
from spec.connection import connection_to  # noqa: E402
from spec.release import WeightsPlan, WeightsSource  # noqa: E402

REVISION = "0" * 40
STORAGE = "/var/lib/gb10-serving"


def main() -> None:
    """Runs the benchmark and prints one line a way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--file-bytes", type=int, default=65536)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--fabric", default="weights", help="name of the virtual fabric that is made and removed")
    parser.add_argument("--network", default="198.51.100.224", help="first address of two /29 for it")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = cluster_of(chosen.network, chosen.nodes, Path(folder) / "id_ed25519")
        fabric.up(chosen.fabric, cluster, report=quiet)
        try:
            measure(chosen, cluster, Path(folder))
        finally:
            fabric.down(chosen.fabric, report=quiet)


def measure(chosen: Any, cluster: Cluster, folder: Path) -> None:
    """Brings the files, then times the ways in turns."""
    delivery = delivery_of(cluster, write_files(folder / "weights", chosen.files, chosen.file_bytes))
    bring(delivery, quiet)
    reference = manifest_of_node(delivery, next(iter(delivery.parties)))
    ways: dict[str, Callable[[], Any]] = {
        "receipt and stat": lambda: bring(delivery, quiet),
        "rsync, dry run": lambda: on_each(delivery.parties, lambda party: rsync(party, delivery)),
        "every byte hashed again": lambda: missing(delivery, reference, deep=True),
    }
    if shutil.which("rsync") is None:
        del ways["rsync, dry run"]
        print("rsync is not installed here: left out")
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(chosen.repeat):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - started)
    total = chosen.files * chosen.file_bytes >> 20
    print(
        f"{chosen.files} files, {total} MiB, on {chosen.nodes} nodes; {os.cpu_count()} cores; median of {chosen.repeat}"
    )
    base = statistics.median(times["receipt and stat"])
    for name, taken in times.items():
        median = statistics.median(taken)
        print(f"{name:<26} {median:6.2f} s  ({min(taken):.2f} to {max(taken):.2f}), {median / base:.1f} x")


def rsync(party: Party, delivery: Delivery) -> None:
    """Has rsync find out that one node has everything."""
    connection = party.connection
    assert connection is not None
    shell = " ".join(["ssh", *(f"'{word}'" for word in connection.ssh_options()), "-p", str(connection.port)])
    source = f"{delivery.plan.source.folder}/"
    target = f"{connection.user}@{connection.address}:{delivery.plan.folder}/"
    subprocess.run(["rsync", "-an", "--size-only", "-e", shell, source, target], check=True, capture_output=True)


def write_files(folder: Path, count: int, size: int) -> Path:
    """Writes files that are all different."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for number in range(count - 1):
        (folder / f"part-{number:05}.bin").write_bytes(number.to_bytes(8, "little") + os.urandom(size - 8))
    return folder


def delivery_of(cluster: Cluster, source: Path) -> Delivery:
    """Returns the delivery of a folder of this machine to all nodes."""
    plan = WeightsPlan(
        name="bench",
        revision=REVISION,
        repository=None,
        manifest=None,
        layout="flat",
        size_bytes=None,
        requires=("config",),
        required_files=(),
        source=WeightsSource(kind="controller", folder=str(source)),
        folder=f"{STORAGE}/weights/bench/files",
        receipt=f"{STORAGE}/weights/bench/files.receipt.json",
        target="/model",
        path="/model",
    )
    parties = {
        name: Party(name, connection_to(cluster, name), STORAGE, node.rails[0].address, node.switch)
        for name, node in cluster.nodes.items()
    }
    return Delivery(plan, STORAGE, parties)


def cluster_of(network: str, count: int, identity_file: Path) -> Cluster:
    """Returns a cluster of virtual nodes whose management and rail networks are two neighbouring /29."""
    start, first = network.rsplit(".", 1)
    management, rail = int(first), int(first) + 8
    return Cluster.model_validate(
        {
            "hardware": "virtual",
            "ssh": {"identity_file": str(identity_file), "connect_timeout_seconds": 5},
            "limits": {"open_files": 20000, "locked_memory_bytes": 8388608, "shared_memory_bytes": 1 << 30},
            "virtual_fabric": {
                "management_subnet": f"{start}.{management}/29",
                "rail_subnets": [f"{start}.{rail}/29"],
            },
            "nodes": {
                f"bench-{number}": {
                    "management_address": f"{start}.{management + 1 + number}",
                    "host_key": public_line(host_key(f"bench-{number}")),
                    "switch": "virtual",
                    "rails": [{"address": f"{start}.{rail + 1 + number}", "interface": "rail0"}],
                }
                for number in range(1, count + 1)
            },
        }
    )


def quiet(_: str) -> None:
    """Reports nothing."""


if __name__ == "__main__":
    main()
