"""Examines nodes in parallel; what a node says is joined with the catalogue, and nodes are compared."""

import ipaddress
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ops import stacks
from ops.errors import OperationError
from ops.remote import NodeError, run_on_node
from spec.ailment import Ailment, Severity
from spec.cluster import Cluster
from spec.connection import connection_to

_EXAMPLES = tuple(map(ipaddress.ip_network, ("192.0.2.0/24", "203.0.113.0/24")))
"""Networks set aside for documentation: the shipped examples lie there and cannot be reached."""

_COMPARED = {
    "kernel": "kernels-differ",
    "driver": "drivers-differ",
    "docker": "dockers-differ",
    "image_store": "image-stores-differ",
}
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Patient:
    """A node that is examined.

    Attributes:
        name: of the node.
        cluster_name, cluster: where it is described.
        gpus: of its hardware class.
    """

    name: str
    cluster_name: str
    cluster: Cluster
    gpus: int

    def request(self) -> dict[str, Any]:
        """Returns what the node must know to examine itself."""
        node, limits = self.cluster.nodes[self.name], self.cluster.limits
        return {
            "gpus": self.gpus,
            "rails": [{"address": rail.address, "interface": rail.interface} for rail in node.rails],
            "storage_folder": self.cluster.storage_folder,
            "open_files": limits.open_files,
            "locked_memory_bytes": limits.locked_memory_bytes,
            "shared_memory_bytes": limits.shared_memory_bytes,
            "controller_seconds": time.time(),
            "delay_seconds": self.cluster.ssh.connect_timeout_seconds,
        }


@dataclass(frozen=True)
class Diagnosis:
    """One finding with all that is known of it.

    Attributes:
        node: name, or several with commas for what differs between them.
        id: stable.
        severity: how bad it is.
        read: what was read.
        why, source, cure: from the catalogue.
    """

    node: str
    id: str
    severity: Severity
    read: str
    why: str
    source: str
    cure: str


@dataclass(frozen=True)
class Examination:
    """What came of examining nodes.

    Attributes:
        nodes: that answered.
        findings: the worst first.
        unasked: what could not be asked: node, check (`node` for the whole node) and why.
    """

    nodes: tuple[str, ...]
    findings: tuple[Diagnosis, ...]
    unasked: tuple[dict[str, str], ...]

    def as_data(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return {
            "nodes": list(self.nodes),
            "findings": [vars(found) for found in self.findings],
            "could_not_ask": list(self.unasked),
        }


def patients(names: Sequence[str], cluster: str | None, stack: str | None) -> list[Patient]:
    """Returns the nodes that are meant: by name, of a cluster, of a stack, or all that could be reached.

    Raises:
        OperationError: a name is no node.
    """
    if stack is not None:
        cluster = stacks.situation_of(stack).config.cluster
        names = names or stacks.planned(stack).rank_nodes
    known = _known(cluster)
    if not names:
        chosen = [patient for patient in known if cluster or _may_exist(patient)]
        if not chosen:
            raise OperationError("no cluster of the catalogue has nodes of its own yet: name one with --cluster")
        return chosen
    by_name = {patient.name: patient for patient in known}
    absent = [name for name in names if name not in by_name]
    if absent:
        raise OperationError(f"no node {', '.join(absent)}; the catalogue has: {', '.join(by_name)}")
    return [by_name[name] for name in names]


def examine(chosen: Sequence[Patient]) -> Examination:
    """Examines all nodes at once; one that does not answer keeps nobody waiting longer than ssh's own limit."""
    with ThreadPoolExecutor(max_workers=len(chosen)) as pool:
        answers = dict(zip((patient.name for patient in chosen), pool.map(_ask, chosen), strict=True))
    return judge(answers)


def judge(answers: Mapping[str, dict[str, Any] | str]) -> Examination:
    """Joins what nodes said with the catalogue and compares the nodes.

    Args:
        answers: what each node said, or why it could not be asked.
    """
    ailments = stacks.CATALOG.ailments()
    heard = {name: answer for name, answer in answers.items() if not isinstance(answer, str)}
    found = [
        _diagnosis(ailments, name, one["id"], one["read"], one["values"])
        for name, answer in heard.items()
        for one in answer["findings"]
    ]
    found += [_diagnosis(ailments, *one) for one in _compared(heard)]
    unasked = [{"node": name, "check": "node", "why": answer} for name, answer in answers.items() if name not in heard]
    unasked += [{"node": name, **one} for name, answer in heard.items() for one in answer["unasked"]]
    ordered = sorted(found, key=lambda one: _SEVERITIES.index(one.severity))
    return Examination(tuple(heard), tuple(ordered), tuple(unasked))


def _ask(patient: Patient) -> dict[str, Any] | str:
    connection = connection_to(patient.cluster, patient.name)
    try:
        return run_on_node(connection, patient.cluster.storage_folder, "doctor", patient.request())
    except NodeError as error:
        return str(error)


def _known(cluster: str | None) -> list[Patient]:
    names = [cluster] if cluster else sorted(path.stem for path in (stacks.CATALOG.folder / "clusters").glob("*.yaml"))
    return [
        Patient(node, name, described, stacks.CATALOG.hardware(described.hardware).gpus)
        for name in names
        for described in [stacks.CATALOG.cluster(name)]
        for node in described.nodes
    ]


def _may_exist(patient: Patient) -> bool:
    address = ipaddress.ip_address(patient.cluster.nodes[patient.name].management_address)
    return not any(address in network for network in _EXAMPLES)


def _compared(heard: Mapping[str, dict[str, Any]]) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    for fact, ailment in _COMPARED.items():
        nodes_by_value: dict[str, list[str]] = defaultdict(list)
        for name, answer in heard.items():
            if answer["facts"][fact] is not None:
                nodes_by_value[answer["facts"][fact]].append(name)
        if len(nodes_by_value) > 1:
            read = "; ".join(f"{', '.join(names)}: {value}" for value, names in nodes_by_value.items())
            yield ", ".join(heard), ailment, read, {}
    nodes_by_address: dict[str, list[str]] = defaultdict(list)
    for name, answer in heard.items():
        for address in set(answer["facts"]["addresses"] or ()):
            nodes_by_address[address].append(name)
    for address, names in nodes_by_address.items():
        if len(names) > 1:
            values = {"address": address, "nodes": ", ".join(names)}
            yield ", ".join(names), "address-on-two-nodes", f"{address} is on {' and '.join(names)}", values


def _diagnosis(
    ailments: Mapping[str, Ailment], node: str, ailment_id: str, read: str, values: Mapping[str, Any]
) -> Diagnosis:
    known = ailments[ailment_id]
    shown = {key: ", ".join(value) if isinstance(value, list) else value for key, value in values.items()}
    return Diagnosis(
        node=node,
        id=ailment_id,
        severity=known.severity,
        read=read,
        why=known.why.format_map(shown),
        source=known.source,
        cure=known.cure.format_map(shown),
    )
