"""What the measurements of a fabric mean: plain data in, findings out."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ops.doctor.examining import Diagnosis
from spec.ailment import Ailment

_SMALL_MTU = 9000
_SLOW_SHARE_OF_PEERS = 1 / 3
_SLOW_SHARE_OF_LINK = 0.2
_LATCHED_GIGABITS = (6.0, 18.0)
_LATCH_MATTERS_FROM_GIGABITS = 40.0
_ADDED_SHARE = 1.3


@dataclass(frozen=True)
class Flow:
    """One TCP flow that was tried.

    Attributes:
        rail: place in the node's rails.
        source, target: names of nodes.
        port: of the target.
        interface: of the source.
        why: it did not work; none if it did.
        gigabits_per_second: none for a mere handshake.
    """

    rail: int
    source: str
    target: str
    port: int
    interface: str
    why: str | None
    gigabits_per_second: float | None


@dataclass(frozen=True)
class Collective:
    """All-reduce of one variant in one group.

    Attributes:
        group: of the stack.
        variant: such as `rail 0`, `all rails`, `Ring`, `Tree`.
        gigabits_per_second: bus bandwidth by bytes.
        nccl: version by node; empty over Gloo.
        backend: `nccl` or `gloo`.
    """

    group: str
    variant: str
    gigabits_per_second: dict[int, float]
    nccl: dict[str, str]
    backend: str

    @property
    def best(self) -> float:
        """The best rate over all sizes."""
        return max(self.gigabits_per_second.values())


class Judge:
    """Turns measurements into findings with the catalogue's words.

    Args:
        ailments: by id.
    """

    def __init__(self, ailments: Mapping[str, Ailment]) -> None:
        self._ailments = ailments

    def links(self, looks: Mapping[str, dict[str, Any]]) -> list[Diagnosis]:
        """Judges what each node said of itself, and compares the nodes rail by rail."""
        found = [
            Diagnosis(
                node,
                one["code"],
                "error",
                one["text"],
                "The fabric is not what was asked for.",
                "runtime/fabric",
                one["way_out"],
            )
            for node, look in looks.items()
            for one in look["problems"]
        ]
        rails = max((len(look["links"]) for look in looks.values()), default=0)
        for rail in range(rails):
            links = {node: look["links"][rail] for node, look in looks.items() if rail < len(look["links"])}
            found += self._compared(rail, links)
        for node, look in looks.items():
            found += [one for link in look["links"] for one in self._narrow(node, link)]
        return [*found, *self._indexes(looks)]

    def flows(self, flows: Sequence[Flow], links: Mapping[tuple[str, int], dict[str, Any]]) -> list[Diagnosis]:
        """Judges the mesh and the streams.

        Args:
            flows: all that were tried.
            links: by node and rail, for the speed that a link should have.
        """
        blocked: dict[tuple[int, str, str], list[Flow]] = defaultdict(list)
        for flow in flows:
            if flow.why:
                blocked[flow.rail, flow.source, flow.target].append(flow)
        found = [
            self._find(
                target,
                "mesh-blocked",
                f"{source} cannot reach {_ports(pair)} of {target} over rail {rail}: {pair[0].why}",
                interface=pair[0].interface,
                node=target,
            )
            for (rail, source, target), pair in blocked.items()
        ]
        streams = [flow for flow in flows if flow.gigabits_per_second is not None]
        return [*found, *self._slow(streams, links)]

    def collectives(self, collectives: Sequence[Collective], nominal_gigabits: float | None) -> list[Diagnosis]:
        """Judges all-reduce of every group.

        Args:
            collectives: of all groups and variants.
            nominal_gigabits: what one rail should carry; none where nobody says.
        """
        found: list[Diagnosis] = []
        for group in dict.fromkeys(one.group for one in collectives):
            variants = {one.variant: one for one in collectives if one.group == group and one.backend == "nccl"}
            found += self._algorithms(group, variants)
            found += self._rails(group, variants, nominal_gigabits)
            versions = {node: version for one in variants.values() for node, version in one.nccl.items()}
            if len(set(versions.values())) > 1:
                read = ", ".join(f"{node} {version}" for node, version in versions.items())
                found.append(self._find(", ".join(versions), "nccl-versions-differ", read))
        return found

    def _compared(self, rail: int, links: Mapping[str, dict[str, Any]]) -> Iterator[Diagnosis]:
        nodes = ", ".join(links)
        mtus = {node: link["mtu_bytes"] for node, link in links.items()}
        if len(set(mtus.values())) > 1:
            yield self._find(nodes, "mtu-differs", f"rail {rail}: {_listed(mtus)}", most=max(mtus.values()))
        elif any(link["hca"] for link in links.values()) and min(mtus.values(), default=_SMALL_MTU) < _SMALL_MTU:
            yield self._find(nodes, "mtu-small", f"rail {rail}: {_listed(mtus)}")
        speeds = {node: link["rate"] or link["speed_megabits"] for node, link in links.items()}
        if len({speed for speed in speeds.values() if speed}) > 1:
            interface = next(iter(links.values()))["interface"]
            yield self._find(nodes, "speeds-differ", f"rail {rail}: {_listed(speeds)}", interface=interface)

    def _narrow(self, node: str, link: Mapping[str, Any]) -> Iterator[Diagnosis]:
        pcie = link["pcie"]
        for what in ("width", "speed"):
            now, most = pcie[f"current_link_{what}"], pcie[f"max_link_{what}"]
            if now and most and _number(now) < _number(most):
                yield self._find(node, "pcie-narrow", f"{link['interface']}: PCIe {what} {now} of {most}")

    def _indexes(self, looks: Mapping[str, dict[str, Any]]) -> Iterator[Diagnosis]:
        least = {
            node: [min(found) for rail in look["indexes"] for found in rail.values() if found]
            for node, look in looks.items()
        }
        if len({tuple(found) for found in least.values() if found}) > 1:
            read = "; ".join(f"{node} {', '.join(map(str, found))}" for node, found in least.items())
            yield self._find(", ".join(looks), "gid-indexes-differ-between-nodes", read)

    def _slow(self, streams: Sequence[Flow], links: Mapping[tuple[str, int], dict[str, Any]]) -> Iterator[Diagnosis]:
        by_rail: dict[int, list[Flow]] = defaultdict(list)
        for flow in streams:
            by_rail[flow.rail].append(flow)
        for flow in streams:
            rate = flow.gigabits_per_second or 0.0
            peers = [other.gigabits_per_second or 0.0 for other in by_rail[flow.rail] if other is not flow]
            typical = statistics.median(peers) if peers else None
            link = links.get((flow.source, flow.rail), {})
            nominal = (link.get("speed_megabits") or 0) / 1000 if link.get("is_physical") else 0.0
            if typical and rate < typical * _SLOW_SHARE_OF_PEERS:
                against = f"the other flows of this rail carry {typical:.2f}"
            elif nominal and rate < nominal * _SLOW_SHARE_OF_LINK:
                against = f"the link says {nominal:g}"
            else:
                continue
            read = f"rail {flow.rail}: {flow.source} to {flow.target} {rate:.2f} Gb/s, {against}"
            yield self._find(flow.source, "link-slow", read, interface=flow.interface, node=flow.source)

    def _algorithms(self, group: str, variants: Mapping[str, Collective]) -> Iterator[Diagnosis]:
        ring, tree = variants.get("Ring"), variants.get("Tree")
        if ring and tree and tree.best > ring.best:
            read = f"group {group}: Tree {tree.best:.1f} Gb/s, Ring {ring.best:.1f}"
            yield self._find(group, "tree-ahead-of-ring", read)

    def _rails(
        self, group: str, variants: Mapping[str, Collective], nominal_gigabits: float | None
    ) -> Iterator[Diagnosis]:
        alone = {name: one for name, one in variants.items() if name.startswith("rail ")}
        low, high = _LATCHED_GIGABITS
        fast = nominal_gigabits is None or nominal_gigabits >= _LATCH_MATTERS_FROM_GIGABITS
        for name, one in alone.items():
            if fast and low <= one.best <= high:
                yield self._find(group, "rail-latched", f"group {group}: {name} carries {one.best:.1f} Gb/s")
        every = variants.get("all rails")
        if every and len(alone) > 1 and every.best < _ADDED_SHARE * max(one.best for one in alone.values()):
            shown = ", ".join(f"{name} {one.best:.1f}" for name, one in alone.items())
            yield self._find(group, "rails-do-not-add", f"group {group}: {shown}, together {every.best:.1f} Gb/s")

    def _find(self, where: str, ailment_id: str, read: str, /, **values: Any) -> Diagnosis:
        known = self._ailments[ailment_id]
        return Diagnosis(
            where,
            ailment_id,
            known.severity,
            read,
            known.why.format_map(values),
            known.source,
            known.cure.format_map(values),
        )


def nominal_gigabits(looks: Iterable[dict[str, Any]]) -> float | None:
    """Returns what the slowest RDMA port says of its rate (`100 Gb/sec (4X EDR)`); none without RDMA."""
    rates = [_number(link["rate"]) for look in looks for link in look["links"] if link["rate"]]
    return min(rates, default=None)


def _ports(flows: Sequence[Flow]) -> str:
    numbers = ", ".join(str(flow.port) for flow in flows)
    return f"port{'s' if len(flows) != 1 else ''} {numbers}"


def _number(text: str) -> float:
    """Returns the number that a sysfs attribute begins with: `32.0 GT/s PCIe`, `16`, `100 Gb/sec (4X EDR)`."""
    return float(text.split()[0])


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{node} {value}" for node, value in values.items())
