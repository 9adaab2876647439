"""Who sends to whom when one node's files go to many: order, shape and number of streams.

A chain needs each link once and costs every node a second pass over its memory; a star needs the source's link once for
each receiver. Which one is faster depends on links and processors, so it is measured and not assumed
(shared/facts/engine.md section 6: with three receivers on limited links a chain takes 1.06 x the time of one receiver
and a star 2.8 x; without limit a chain takes 4.6 x and a star 2.4 x).
"""

from collections.abc import Mapping, Sequence

MOST_STREAMS = 8
_TREE_FROM_RECEIVERS = 4
_NEARLY_AS_FAST = 0.95


def ordered(source_switch: str, switches: Mapping[str, str]) -> list[str]:
    """Returns the receivers so that a chain through them crosses between switches as seldom as possible.

    Args:
        source_switch: where the source hangs.
        switches: each receiver's switch, in the order in which they were asked for.
    """
    rank = {source_switch: 0}
    for switch in switches.values():
        rank.setdefault(switch, len(rank))
    return sorted(switches, key=lambda node: rank[switches[node]])


def parents(order: Sequence[str], degree: int) -> dict[str, str | None]:
    """Returns whom each receiver gets its bytes from (none: the source), if every node sends to `degree` others."""
    return {node: None if number < degree else order[number // degree - 1] for number, node in enumerate(order)}


def degrees_to_measure(receivers: int) -> list[int]:
    """Returns the shapes that are worth a measurement: a star, a chain, and for many receivers a tree of two."""
    if receivers < 2:
        return [1]
    return [receivers, 1, *([2] if receivers >= _TREE_FROM_RECEIVERS else [])]


def best_degree(bytes_per_second: Mapping[int, float]) -> int:
    """Returns the degree with the highest rate at its slowest receiver; of nearly equal ones the shallowest tree.

    Args:
        bytes_per_second: measured, by degree.
    """
    enough = _NEARLY_AS_FAST * max(bytes_per_second.values())
    return max(degree for degree, rate in bytes_per_second.items() if rate >= enough)


def streams(cores: Sequence[int], files: int) -> int:
    """Returns how many streams go over each connection of two nodes.

    A stream is one process on each side, and one file's hash is one process's work, so more streams than files or than
    the weakest node's cores gain nothing.

    Args:
        cores: of every node that takes part.
        files: how many are moved.
    """
    return max(1, min(MOST_STREAMS, min(cores), files))
