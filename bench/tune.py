"""`python -m bench.tune`: tries chunk sizes, pipe sizes and numbers of streams between processes on loopback.

Each variant runs from a copy of runtime/ in which one constant is another. The variants take turns, so that what else
the machine does meets all of them; the best of each counts.
"""

import re
import resource
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ops import node_session
from ops.fan_out import FanOut
from ops.places import PROJECT
from spec import transfer_shape
from tests.transfer_faults import Scene

_OUT = Console()


@dataclass(frozen=True)
class Variant:
    """One constant of runtime/transfer with another value; no file says the number of streams."""

    name: str
    file: str
    constant: str
    value: str


VARIANTS = [
    Variant("as it is", "", "", ""),
    *(Variant(f"{count} streams", "", "streams", str(count)) for count in (1, 2, 4, 8)),
    *(Variant(f"chunk of {size} MiB", "frames.py", "CHUNK_BYTES", f"{size} << 20") for size in (1, 4, 32)),
    *(Variant(f"block of {size} MiB", "blocks.py", "BLOCK_BYTES", f"{size} << 20") for size in (1, 4, 8)),
    *(Variant(f"{count} blocks", "intake.py", "POOL_BLOCKS", str(count)) for count in (4, 16, 32)),
    *(Variant(f"lead of {count} frames", "outlet.py", "_LEAD", str(count)) for count in (2, 64)),
]


def main(
    mebibytes: Annotated[int, typer.Option(help="What is moved.")] = 1024,
    repeats: Annotated[int, typer.Option(help="How often each is measured; the best counts.")] = 3,
    folder: Annotated[Path, typer.Option(help="Where the files lie.")] = Path("/var/tmp"),
) -> None:
    """Moves the same files with each variant and prints seconds and processor seconds."""
    best: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory(dir=folder) as work:
        scene = Scene(Path(work))
        for number in range(8):
            scene.add(f"model-{number}", bytes([number]) * (mebibytes << 17))
        for _ in range(repeats):
            for variant in VARIANTS:
                found = _measured(scene, variant)
                best[variant.name] = min(best.get(variant.name, found), found)
    table = Table("variant", "seconds", "CPU seconds")
    for name, (seconds, cpu) in best.items():
        table.add_row(name, f"{seconds:.2f}", f"{cpu:.2f}")
    _OUT.print(table)


def _measured(scene: Scene, variant: Variant) -> tuple[float, float]:
    copy = scene.folder / "program"
    shutil.copytree(PROJECT / "runtime", copy / "runtime")
    if variant.file:
        path = copy / "runtime" / "transfer" / variant.file
        text, count = re.subn(
            rf"^{variant.constant} = .*$", f"{variant.constant} = {variant.value}", path.read_text(), flags=re.M
        )
        assert count == 1, variant
        path.write_text(text)
    usual = transfer_shape.streams
    if variant.constant == "streams":
        transfer_shape.streams = lambda *_: int(variant.value)
    node_session.PROJECT = copy
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    try:
        with FanOut(scene.source, str(scene.source_folder), scene.receivers(1), scene.files, print) as transfer:
            transfer.run()
    finally:
        transfer_shape.streams = usual
        node_session.PROJECT = PROJECT
    seconds = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    shutil.rmtree(scene.folder / "node-1")
    shutil.rmtree(copy)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu


if __name__ == "__main__":
    typer.run(main)
