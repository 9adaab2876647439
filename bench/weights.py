"""`python -m bench.weights`: how long it takes to find out that there is nothing to do, on virtual nodes.

In turns: receipts and stat (`ops.weights.bring`, what `up` and `fleet weights status` do), a dry run of rsync from one
node to all others side by side, and hashing everything again (`--deep`). The bar is design.md section 8: under 1 s for
1,000 files on 4 nodes.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.nodes import BenchNode, virtual_nodes
from ops.weights import Delivery, bring, manifest_of_node, missing
from spec.release import WeightsPlan, WeightsSource

_FOLDER = "/var/lib/gb10-serving/weights/bench/files"


def main(
    fabric: Annotated[str, typer.Option(help="Name of the virtual fabric that is made and removed.")] = "bench",
    management: Annotated[str, typer.Option(help="Its management network.")] = "198.51.100.192/28",
    rail: Annotated[str, typer.Option(help="Its rail network.")] = "198.51.100.208/28",
    files: Annotated[int, typer.Option(help="How many files there are.")] = 1000,
    file_bytes: Annotated[int, typer.Option(help="How large each is.")] = 65536,
    repeats: Annotated[int, typer.Option(help="How often each way is measured.")] = 7,
) -> None:
    """Brings many files to four nodes once, then measures how each way finds nothing to do."""
    with tempfile.TemporaryDirectory() as folder, virtual_nodes(fabric, management, rail, 4, with_tools=False) as nodes:
        delivery = _delivery(nodes, _write_files(Path(folder) / "weights", files, file_bytes))
        bring(delivery, _ignore)
        manifest = manifest_of_node(delivery, nodes[0].name)
        ways: dict[str, Callable[[], Any]] = {
            "receipts and stat": lambda: bring(delivery, _ignore),
            "rsync, dry run": lambda: nodes[0].run(_rsync(nodes)),
            "every byte hashed again": lambda: missing(delivery, manifest, deep=True),
        }
        times = _measure(ways, repeats)
    print(f"{files} files of {file_bytes} bytes on {len(nodes)} nodes, {os.cpu_count()} cores, median of {repeats}:")
    base = statistics.median(times["receipts and stat"])
    for name, taken in times.items():
        median = statistics.median(taken)
        print(f"  {name:<24} {median:6.2f} s ({min(taken):.2f} to {max(taken):.2f}), {median / base:.1f} x")


def _measure(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - started)
    return times


def _rsync(nodes: Sequence[BenchNode]) -> str:
    jobs = [f"rsync -an {_FOLDER}/ {node.address}:{_FOLDER}/ & j{i}=$!" for i, node in enumerate(nodes[1:])]
    waits = [f"wait $j{i}" for i in range(len(jobs))]
    return "; ".join([*jobs, *waits])


def _write_files(folder: Path, count: int, size: int) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for number in range(count - 1):
        (folder / f"part-{number:05}.bin").write_bytes(number.to_bytes(8, "little") + os.urandom(size - 8))
    return folder


def _delivery(nodes: Sequence[BenchNode], source: Path) -> Delivery:
    plan = WeightsPlan(
        name="bench",
        revision="0" * 40,
        repository=None,
        manifest=None,
        layout="flat",
        size_bytes=None,
        requires=("config",),
        required_files=(),
        source=WeightsSource(kind="controller", folder=str(source)),
        folder=_FOLDER,
        receipt=f"{_FOLDER}.receipt.json",
        target="/model",
        path="/model",
    )
    return Delivery(plan, {node.name: node.party for node in nodes})


def _ignore(_: str) -> None:
    pass


if __name__ == "__main__":
    typer.run(main)
