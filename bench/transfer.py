"""`python -m bench.transfer`: the transfer engine beside other ways, on virtual nodes, in one run."""

import hashlib
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bench.nodes import FOLDER, BenchNode, limit_links, virtual_nodes
from bench.rivals import RIVALS, SOURCE, TARGET, tar_over_ssh
from ops.fan_out import FanOut
from ops.remote import stream_to_node
from ops.transfers import Receiver, TransferFile

_GIGA = 1e9
_OURS = "this engine"
_OUT = Console()


def main(
    fabric: Annotated[str, typer.Option(help="Name of the virtual fabric that is made and removed.")] = "bench",
    management: Annotated[str, typer.Option(help="Its management network.")] = "198.51.100.192/28",
    rail: Annotated[str, typer.Option(help="Its rail network.")] = "198.51.100.208/28",
    mebibytes: Annotated[int, typer.Option(help="What is moved to one receiver.")] = 2048,
    limited_mebibytes: Annotated[int, typer.Option(help="What is moved to three receivers.")] = 1024,
    gbit: Annotated[float, typer.Option(help="Speed of the limited links.")] = 1,
    repeats: Annotated[int, typer.Option(help="How often each is measured; the best counts.")] = 3,
    only: Annotated[str, typer.Option(help="one, three or all.")] = "all",
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as one line of JSON at the end.")] = False,
) -> None:
    """Measures one receiver against other tools, and three receivers in every shape, and prints ratios.

    Every way starts with the source's files in its page cache and an empty target. This engine's time includes the
    start of its sessions over ssh, the hash of every byte and the sync to the disk; the other ways' times include
    neither hash nor sync unless their row says so.
    """
    figures: dict[str, Any] = {}
    with virtual_nodes(fabric, management, rail, 4, with_tools=True) as nodes:
        if only in ("one", "all"):
            files = make_files(nodes[0], mebibytes)
            figures["one receiver"] = _one_receiver(nodes, files, repeats)
        if only in ("three", "all"):
            files = make_files(nodes[0], limited_mebibytes)
            for title, speed in ((f"links of {gbit:g} Gbit/s", gbit), ("links without limit", None)):
                limit_links(fabric, nodes, speed, with_tools=True)
                figures[title] = _three_receivers(title, nodes, files, repeats)
    if as_json:
        print(json.dumps(figures))


def make_files(source: BenchNode, mebibytes: int) -> list[TransferFile]:
    """Makes a model-like folder on the source: eight shards and some small files."""
    sizes = {f"model-{number}.safetensors": (mebibytes << 20) // 8 for number in range(8)}
    sizes |= {f"config-{number}.json": 1000 * number for number in range(1, 9)}
    block = random.Random(0).randbytes(8 << 20)
    files = []
    source.run(f"rm -rf {SOURCE}; mkdir -p {SOURCE}")
    with tempfile.NamedTemporaryFile() as local:
        local.write(block)
        local.flush()
        _put(source, Path(local.name), f"{FOLDER}/block")
    for number, (path, size) in enumerate(sizes.items()):
        digest = hashlib.sha256(bytes([number]))
        left = size - 1
        while left:
            digest.update(block[: min(left, len(block))])
            left -= min(left, len(block))
        files.append(TransferFile(path, size, digest.hexdigest()))
        source.run(
            f"(printf '\\x{number:02x}'; for n in $(seq {size // len(block) + 1}); do cat {FOLDER}/block; done) "
            f"2>/dev/null | head -c {size} > {SOURCE}/{path}"
        )
    return files


def _put(node: BenchNode, path: Path, target: str) -> None:
    connection = node.party.connection
    assert connection is not None
    stream_to_node(connection, f"tee {target} >/dev/null", path, 60)


def carry(nodes: Sequence[BenchNode], files: Sequence[TransferFile], degree: int | None = None) -> None:
    """Carries with this engine from the first node to the others."""
    receivers = [Receiver(node.party, TARGET) for node in nodes[1:]]
    with FanOut(nodes[0].party, SOURCE, receivers, files, _OUT.print, degree) as transfer:
        transfer.run()


def measured(nodes: Sequence[BenchNode], repeats: int, work: Callable[[], object]) -> dict[str, float]:
    """Runs `work` on clean targets. Returns the best time, and the processor time of that run by side."""
    best: dict[str, float] = {}
    for _ in range(repeats):
        nodes[0].run(f"cat {SOURCE}/* >/dev/null")
        for node in nodes[1:]:
            node.run(f"rm -rf {TARGET} {FOLDER}/.target.transfer; mkdir -p {TARGET}; sync -f {FOLDER}")
        before = [node.cpu_seconds() for node in nodes]
        started = time.monotonic()
        work()
        seconds = time.monotonic() - started
        spent = [node.cpu_seconds() - cpu for node, cpu in zip(nodes, before, strict=True)]
        if not best or seconds < best["seconds"]:
            best = {"seconds": seconds, "source_cpu": spent[0], "receivers_cpu": sum(spent[1:])}
    return best


def _one_receiver(nodes: Sequence[BenchNode], files: Sequence[TransferFile], repeats: int) -> dict[str, Any]:
    source, target = nodes[0], nodes[1]
    pair, total = [source, target], sum(file.size_bytes for file in files)
    carry(pair, files)
    results = {}
    for rival in RIVALS:
        target.run(f"mkdir -p {FOLDER}")
        rival.prepare(source, target, [file.path for file in files])
        try:
            results[rival.name] = measured(
                pair, 1 if rival.name == "local cp and sync" else repeats, lambda r=rival: r.carry(source, target)
            )
        finally:
            rival.finish(source, target)
    results[_OURS] = measured(pair, repeats, lambda: carry(pair, files))
    _require_right(target, files)
    _print(f"one receiver, {total / _GIGA:.2f} GB", results, total)
    return results


def _three_receivers(
    title: str, nodes: Sequence[BenchNode], files: Sequence[TransferFile], repeats: int
) -> dict[str, Any]:
    total = sum(file.size_bytes for file in files)

    def tar_one_after_the_other() -> None:
        for node in nodes[1:]:
            tar_over_ssh(nodes[0], node)

    results = {
        "tar over ssh, one receiver": measured(nodes[:2], 1, lambda: tar_over_ssh(nodes[0], nodes[1])),
        "tar over ssh, one after the other": measured(nodes, 1, tar_one_after_the_other),
        "this engine, one receiver": measured(nodes[:2], repeats, lambda: carry(nodes[:2], files)),
        "this engine, chain": measured(nodes, repeats, lambda: carry(nodes, files, 1)),
        "this engine, star": measured(nodes, repeats, lambda: carry(nodes, files, 3)),
        _OURS: measured(nodes, repeats, lambda: carry(nodes, files)),
    }
    for node in nodes[1:]:
        _require_right(node, files)
    _print(f"three receivers, {total / _GIGA:.2f} GB to each, {title}", results, total)
    return results


def _require_right(node: BenchNode, files: Sequence[TransferFile]) -> None:
    listed = "\n".join(f"{file.sha256}  {TARGET}/{file.path}" for file in files)
    node.run(f"sha256sum --quiet --check - <<'E'\n{listed}\nE")


def _print(title: str, results: dict[str, dict[str, float]], total: int) -> None:
    table = Table("way", "seconds", "MB/s", "this engine is", "source CPU s/GB", "receivers CPU s/GB", title=title)
    ours = results[_OURS]["seconds"]
    for name, found in results.items():
        table.add_row(
            name,
            f"{found['seconds']:.2f}",
            f"{total / 1e6 / found['seconds']:.0f}",
            f"{found['seconds'] / ours:.2f} x as fast",
            f"{found['source_cpu'] * _GIGA / total:.2f}",
            f"{found['receivers_cpu'] * _GIGA / total:.2f}",
        )
    _OUT.print(table)


if __name__ == "__main__":
    typer.run(main)
