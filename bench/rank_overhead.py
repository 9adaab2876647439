"""What a supervisor costs a node at rest: processor, memory and bytes on the rails of one rank of a group that serves.

`python -m bench.rank_overhead --ranks 4 --seconds 60`, on the loopback address with a child that does nothing.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.rank.group import LoopbackGroup, LoopbackRank

_TICKS = os.sysconf("SC_CLK_TCK")


def measure(group: LoopbackGroup, seconds: float) -> list[dict[str, float]]:
    """Returns what each rank's supervisor used within a time."""
    before = [_usage(rank) for rank in group.ranks]
    time.sleep(seconds)
    after = [_usage(rank) for rank in group.ranks]
    return [
        {
            "processor_percent": 100 * (end["processor_seconds"] - begin["processor_seconds"]) / seconds,
            "resident_mib": end["resident_mib"],
            "own_mib": end["own_mib"],
            "threads": end["threads"],
            "rail_bytes_per_second": (end["exchanged_bytes"] - begin["exchanged_bytes"]) / seconds,
        }
        for begin, end in zip(before, after, strict=True)
    ]


def _usage(rank: LoopbackRank) -> dict[str, float]:
    process = rank.first_process()
    status = rank.status()
    assert process
    assert status
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    rollup = dict(
        line.split(":") for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:] if ":" in line
    )
    kib = {name: int(text.split()[0]) for name, text in rollup.items()}
    return {
        "processor_seconds": (int(fields[11]) + int(fields[12])) / _TICKS,
        "resident_mib": kib["Rss"] / 1024,
        "own_mib": (kib["Private_Clean"] + kib["Private_Dirty"]) / 1024,
        "threads": float(fields[17]),
        "exchanged_bytes": status["exchanged_bytes"],
    }


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        group = LoopbackGroup(Path(folder) / "group", arguments.ranks)
        try:
            group.start()
            group.wait_for("serving", seconds=120)
            found = measure(group, arguments.seconds)
        finally:
            group.end()
    if arguments.json:
        print(json.dumps(found))
        return 0
    for number, figures in enumerate(found):
        print(
            f"rank {number} of {arguments.ranks}: {figures['processor_percent']:.2f} % of one processor, "
            f"{figures['resident_mib']:.1f} MiB resident ({figures['own_mib']:.1f} its own), {figures['threads']:.0f} "
            f"threads, {figures['rail_bytes_per_second'] / 1000:.1f} kB/s on the rail"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
