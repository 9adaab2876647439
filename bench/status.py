"""How long `fleet status` takes on so many nodes, and how long the same questions would take one after the other.

`python -m bench.status --management 198.51.100.32/28 --rail 198.51.100.96/28 --asked 4 16`: a few virtual
nodes answer under as many names as are asked; both ways in one run, the middle of the rounds is shown.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence

from bench.nodes import BenchNode, virtual_nodes
from ops.stacks import planned
from ops.status import ask_node, stack_status
from spec.release import Release

_NODES = 4
_ROUNDS = 5


def release_of(nodes: Sequence[BenchNode], asked: int) -> Release:
    """Returns a Release of so many nodes, whose connections lead to these, two to a group."""
    base = planned("lab-pool")
    template, group = next(iter(base.nodes.values())), base.groups[0]
    names = [f"n{number}" for number in range(asked)]
    plans = {
        name: template.model_copy(
            update={"connection": nodes[number % len(nodes)].party.connection.model_copy(update={"node": name})}  # type: ignore[union-attr]
        )
        for number, name in enumerate(names)
    }
    groups = tuple(
        group.model_copy(
            update={
                "name": f"g{first}",
                "ranks": tuple(
                    rank.model_copy(update={"node": node})
                    for rank, node in zip(group.ranks, names[first : first + 2], strict=True)
                ),
            }
        )
        for first in range(0, asked, 2)
    )
    image = base.image.model_copy(update={"build_on": names[0]})
    return base.model_copy(update={"nodes": plans, "groups": groups, "image": image, "router": None})


def measure(release: Release) -> tuple[float, float]:
    """Returns the seconds of one status, and of the same questions one after the other."""
    began = time.monotonic()
    found = stack_status(release)
    together = time.monotonic() - began
    if {one.verdict for one in found.standings} - {"absent"}:
        raise RuntimeError(f"the nodes should answer and have nothing: {found.standings}")
    began = time.monotonic()
    for node in release.nodes:
        ask_node(release, node)
    return together, time.monotonic() - began


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fabric", default="bench")
    parser.add_argument("--management", required=True)
    parser.add_argument("--rail", required=True)
    parser.add_argument("--asked", type=int, nargs="+", default=[4, 16])
    arguments = parser.parse_args()
    with virtual_nodes(arguments.fabric, arguments.management, arguments.rail, _NODES, with_tools=False) as nodes:
        for asked in arguments.asked:
            release = release_of(nodes, asked)
            stack_status(release)  # puts the runtime on the nodes
            rounds = [measure(release) for _ in range(_ROUNDS)]
            together, apart = (statistics.median(times) for times in zip(*rounds, strict=True))
            print(f"{asked} nodes: {together:.2f} s, one after the other {apart:.2f} s: {apart / together:.1f} x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
