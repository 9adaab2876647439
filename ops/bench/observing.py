"""Watches the nodes of a stack while a pass runs, and judges whether the traffic went where it was asked to go."""

import threading
import time
from dataclasses import dataclass
from typing import Any

from ops.bench.record import NodeUse, Sample
from ops.bench.statistics import spread
from ops.errors import OperationError
from ops.node_session import NodeSession
from spec.release import Release
from spec.situation import Situation

_INTERVAL_SECONDS = 1.0
_FIRST_SECONDS = 60.0
_LEAST_RAIL_BYTES = 4096
_CLOCKS = ("gpu_mhz", "gpu_celsius", "gpu_watts", "cpu_mhz", "hottest_celsius")


@dataclass(frozen=True)
class ObservedNode:
    """A node of the deployment.

    Attributes:
        rank: of its group.
        ranks: how many the group has.
        rails: names of RDMA devices, or of interfaces where there is no RDMA, that the traffic should use.
    """

    rank: int
    ranks: int
    rails: tuple[str, ...]


def observed_nodes(situation: Situation) -> dict[str, ObservedNode]:
    """Returns the nodes that run ranks, by name, with the rails that their ranks were given."""
    return {
        name: ObservedNode(rank, len(nodes), _rails(situation, name))
        for nodes in situation.config.groups.values()
        for rank, name in enumerate(nodes)
    }


def _rails(situation: Situation, node: str) -> tuple[str, ...]:
    fabric = situation.config.fabric
    rails = [situation.cluster.nodes[node].rails[position] for position in fabric.rails]
    if fabric.kind == "roce":
        return tuple(rail.hca for rail in rails if rail.hca)
    return tuple(rail.interface for rail in rails)


class Observation:
    """Observes nodes of a release from its making until `stop`.

    Args:
        release: says how to reach them.
        nodes: that are observed.

    Raises:
        OperationError: a node cannot be observed.
    """

    def __init__(self, release: Release, nodes: dict[str, ObservedNode]) -> None:
        self._nodes = nodes
        self._started = time.monotonic()
        self._samples: dict[str, list[tuple[float, dict[str, Any]]]] = {name: [] for name in self._nodes}
        self._lost: dict[str, str] = {}
        self._changed = threading.Condition()
        self._sessions = [
            NodeSession(
                name,
                release.nodes[name].connection,
                release.storage_folder,
                "runtime.measure",
                "observe",
                {"interval_seconds": _INTERVAL_SECONDS},
                self._take,
            )
            for name in self._nodes
        ]
        self._wait_for_first()

    def stop(self) -> dict[str, NodeUse]:
        """Ends the observation and returns what was seen of each node.

        Raises:
            OperationError: a node was lost meanwhile.
        """
        with self._changed:
            counted = {name: len(samples) for name, samples in self._samples.items()}
            self._changed.wait_for(
                lambda: self._lost or all(len(self._samples[name]) > counted[name] for name in counted),
                timeout=_FIRST_SECONDS,
            )
            lost = dict(self._lost)
        self.abandon()
        if lost:
            raise OperationError("\n".join(f"{name} could not be observed to the end: {lost[name]}" for name in lost))
        return {name: node_use(self._nodes[name], samples) for name, samples in self._samples.items()}

    def abandon(self) -> None:
        """Ends the observation without a result."""
        for session in self._sessions:
            session.close()

    def _wait_for_first(self) -> None:
        with self._changed:
            ready = self._changed.wait_for(lambda: self._lost or all(self._samples.values()), timeout=_FIRST_SECONDS)
            lost = dict(self._lost)
        if lost or not ready:
            self.abandon()
            silent = [name for name, samples in self._samples.items() if not samples]
            reasons = [lost.get(name, f"said nothing within {_FIRST_SECONDS:.0f} s") for name in silent or lost]
            raise OperationError("nodes cannot be observed: " + "; ".join(reasons))

    def _take(self, session: NodeSession, event: dict[str, Any]) -> None:
        with self._changed:
            if event["event"] == "sample":
                self._samples[session.node].append((time.monotonic() - self._started, event))
            elif event.get("reason"):
                self._lost[session.node] = event["reason"]
            self._changed.notify_all()


def node_use(node: ObservedNode, samples: list[tuple[float, dict[str, Any]]]) -> NodeUse:
    """Turns samples of a node into what the pass did to it."""
    first = samples[0][1]["bytes_by_device"]
    moved = [_since(first, sample["bytes_by_device"]) for _, sample in samples]
    clocks = {name: spread(sample[name] for _, sample in samples) for name in _CLOCKS}
    return NodeUse(
        bytes_by_device=moved[-1],
        rails=node.rails,
        lowest_available_bytes=min(sample["available_bytes"] for _, sample in samples),
        **clocks,
        samples=tuple(
            Sample(
                seconds=round(seconds, 3),
                available_bytes=sample["available_bytes"],
                rail_bytes=_over_rails(node.rails, bytes_by_device),
                other_bytes=_over_others(node.rails, bytes_by_device),
            )
            for (seconds, sample), bytes_by_device in zip(samples, moved, strict=True)
        ),
        unread=tuple(samples[-1][1]["unread"]),
    )


def fabric_faults(nodes: dict[str, ObservedNode], used: dict[str, NodeUse]) -> list[str]:
    """Returns on which nodes the ranks did not talk over the rails that were asked for.

    The head also answers clients, over whatever network they come; the other ranks talk to nobody but their group.
    """
    found = []
    for name, node in nodes.items():
        use = used[name]
        over = _over_rails(node.rails, use.bytes_by_device)
        busiest = max(
            ((device, count) for device, count in use.bytes_by_device.items() if _is_other(device, node.rails)),
            key=lambda pair: pair[1],
            default=("", 0),
        )
        if node.ranks < 2 or (over >= _LEAST_RAIL_BYTES and (node.rank == 0 or over > busiest[1])):
            continue
        found.append(
            f"{name} moved {over:,} bytes over {', '.join(node.rails)} and {busiest[1]:,} over "
            f"{busiest[0] or 'others'}: its group does not use the fabric that the stack asks "
            "for. `./fleet fabric check` shows why; compare "
            "interface names and NCCL_NET"
        )
    return found


def _since(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    return {device: count - before.get(device, 0) for device, count in now.items()}


def _over_rails(rails: tuple[str, ...], moved: dict[str, int]) -> int:
    return sum(moved.get(name, 0) for name in rails)


def _over_others(rails: tuple[str, ...], moved: dict[str, int]) -> int:
    return sum(count for device, count in moved.items() if _is_other(device, rails))


def _is_other(device: str, rails: tuple[str, ...]) -> bool:
    return device != "lo" and device not in rails
