"""Checks a fabric step by step: links, mesh, streams, collectives; each step only after the one before."""

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ops import stacks
from ops.doctor.examining import Diagnosis
from ops.errors import OperationError
from ops.fabric_check.judging import Collective, Flow, Judge, nominal_gigabits
from ops.fabric_check.subject import CheckedNode, Subject
from ops.node_session import NodeSession
from ops.progress import Report
from ops.remote import NodeError, run_on_node
from spec.release import GroupPlan, RankPlan

_PORTS_EACH = 3
_LISTEN_SECONDS = 30.0
_STREAM_SECONDS = 2.0
_COLLECTIVE_SECONDS = 240
_COLLECTIVE_PORTS = (20_000, 32_000)
"""Below the range from which kernels take ports of their own."""


@dataclass
class Outcome:
    """What a check has found so far.

    Attributes:
        looks: what each node said of itself.
        flows: TCP that was tried.
        collectives: that ran.
        findings: what it all means.
        left_out: steps that should have been run and were not, and why.
        notes: steps that there are none of for such a subject.
        unasked: nodes that could not be asked: name and why.
    """

    looks: dict[str, dict[str, Any]] = field(default_factory=dict)
    flows: list[Flow] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    findings: list[Diagnosis] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unasked: dict[str, str] = field(default_factory=dict)

    @property
    def is_sound(self) -> bool:
        """Whether nothing speaks against serving on it."""
        return not self.unasked and all(found.severity == "note" for found in self.findings)

    def as_data(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return {
            "nodes": self.looks,
            "flows": [vars(flow) for flow in self.flows],
            "collectives": [vars(one) for one in self.collectives],
            "findings": [vars(found) for found in self.findings],
            "left_out": self.left_out,
            "notes": self.notes,
            "could_not_ask": self.unasked,
        }


def check(subject: Subject, disturb: bool, collectives: bool, report: Report) -> Outcome:
    """Checks a fabric.

    Args:
        subject: what is checked.
        disturb: measure although a deployment serves on the nodes.
        collectives: whether all-reduce is run at all.
        report: receives what is being done.
    """
    outcome = Outcome()
    judge = Judge(stacks.CATALOG.ailments())
    report(f"look at {', '.join(node.name for node in subject.nodes)}")
    for node, answer in zip(subject.nodes, _at_once(lambda one: _look(subject, one), subject.nodes), strict=True):
        if isinstance(answer, str):
            outcome.unasked[node.name] = answer
        else:
            outcome.looks[node.name] = answer
    outcome.findings += judge.links(outcome.looks)
    present = [node for node in subject.nodes if node.name in outcome.looks and not _has_no_socket(outcome, node)]
    obstacles = _obstacles(outcome)
    may_load = disturb or not obstacles
    if not may_load:
        outcome.left_out.append(
            f"streams and all-reduce could disturb what serves ({'; '.join(obstacles)}): stop it, or say --disturb"
        )
    _mesh(subject, present, may_load, outcome, report)
    links = {(name, rail): link for name, look in outcome.looks.items() for rail, link in enumerate(look["links"])}
    outcome.findings += judge.flows(outcome.flows, links)
    if may_load and collectives:
        _collectives(subject, outcome, report)
        outcome.findings += judge.collectives(outcome.collectives, nominal_gigabits(outcome.looks.values()))
    return outcome


def _obstacles(outcome: Outcome) -> list[str]:
    """Returns what serves on which node, or why nobody knows; not to know is no licence to load a node."""
    return [
        f"{name} runs {', '.join(look['serving'])}" if look["serving"] else f"{name}: {look['serving_unknown']}"
        for name, look in outcome.looks.items()
        if look["serving"] or look["serving_unknown"]
    ]


def _at_once(ask: Callable[[Any], Any], things: Sequence[Any]) -> list[Any]:
    with ThreadPoolExecutor(max_workers=max(1, len(things))) as pool:
        return list(pool.map(ask, things))


def _look(subject: Subject, node: CheckedNode) -> dict[str, Any] | str:
    try:
        return run_on_node(node.connection, subject.storage_folder, "fabric-look", node.fabric)
    except NodeError as error:
        return str(error)


def _has_no_socket(outcome: Outcome, node: CheckedNode) -> bool:
    """Whether a rail's address is not where it should be, so that nothing can listen there."""
    codes = {problem["code"] for problem in outcome.looks[node.name]["problems"]}
    return bool(codes & {"address-on-another-interface", "interface-absent", "address-absent", "interface-down"})


def _mesh(subject: Subject, nodes: list[CheckedNode], may_load: bool, outcome: Outcome, report: Report) -> None:
    password = secrets.token_hex(32)
    report(f"mesh of {len(nodes)} x {len(nodes)} nodes on {_PORTS_EACH} ports each")
    try:
        with _listening(subject, nodes, password) as ports:
            for rail in range(min((len(node.addresses) for node in nodes), default=0)):
                answers = _at_once(lambda node: _connect(subject, node, nodes, ports, rail, password, 0), nodes)  # noqa: B023 - used at once
                outcome.flows += [flow for flows in answers for flow in flows]
                if may_load and len(nodes) > 1:
                    outcome.flows += _streams(subject, nodes, ports, rail, password, report)
    except OperationError as error:
        outcome.left_out.append(f"mesh: {error}")


def _streams(
    subject: Subject,
    nodes: list[CheckedNode],
    ports: dict[str, dict[str, list[int]]],
    rail: int,
    password: str,
    report: Report,
) -> list[Flow]:
    """Sends from each node to the next, one at a time, so that no flow takes another's share."""
    found: list[Flow] = []
    for node, other in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
        report(f"rail {rail}: stream from {node.name} to {other.name}")
        found += _connect(subject, node, [other], ports, rail, password, _STREAM_SECONDS)
    return found


@contextmanager
def _listening(subject: Subject, nodes: list[CheckedNode], password: str) -> Iterator[dict[str, dict[str, list[int]]]]:
    """Lets every node listen while the context lasts; yields ports by node and address."""
    ports: dict[str, dict[str, list[int]]] = {}
    failed: dict[str, str] = {}
    changed = threading.Condition()

    def deliver(session: NodeSession, event: dict[str, Any]) -> None:
        with changed:
            if event["event"] == "listening":
                ports[session.node] = event["ports"]
            elif event.get("reason"):
                failed[session.node] = event["reason"]
            changed.notify_all()

    sessions = [
        NodeSession(
            node.name,
            node.connection,
            subject.storage_folder,
            "runtime.fabric_check",
            "listen",
            {"addresses": node.addresses, "ports_each": _PORTS_EACH, "password": password},
            deliver,
        )
        for node in nodes
    ]
    try:
        with changed:
            ready = changed.wait_for(lambda: failed or len(ports) == len(nodes), timeout=_LISTEN_SECONDS)
        if failed or not ready:
            raise OperationError("; ".join(failed.values()) or f"not every node listened within {_LISTEN_SECONDS} s")
        yield ports
    finally:
        for session in sessions:
            session.close()


def _connect(
    subject: Subject,
    node: CheckedNode,
    others: Sequence[CheckedNode],
    ports: dict[str, dict[str, list[int]]],
    rail: int,
    password: str,
    stream_seconds: float,
) -> list[Flow]:
    targets = [
        {"node": other.name, "address": other.addresses[rail], "port": port}
        for other in others
        for port in ports[other.name][other.addresses[rail]][: 1 if stream_seconds else None]
    ]
    request = {
        "source": node.addresses[rail],
        "targets": targets,
        "password": password,
        "stream_seconds": stream_seconds,
    }
    answers = run_on_node(node.connection, subject.storage_folder, "fabric-connect", request, timeout_seconds=600)
    return [
        Flow(
            rail,
            node.name,
            answer["node"],
            answer["port"],
            node.fabric["rails"][rail]["interface"],
            answer["why"],
            answer["gigabits_per_second"],
        )
        for answer in answers
    ]


def _collectives(subject: Subject, outcome: Outcome, report: Report) -> None:
    if subject.release is None:
        outcome.notes.append("no all-reduce: a cluster has no image to run it in; name a stack")
        return
    if any(found.severity == "error" for found in outcome.findings) or outcome.unasked:
        outcome.left_out.append("collectives: the links or the mesh have errors, which come first")
        return
    for group in subject.release.groups:
        if len(group.ranks) < 2:
            outcome.notes.append(f"no all-reduce in group {group.name}: its one rank talks to nobody")
            continue
        for variant, rails, environment in _variants(subject):
            report(f"all-reduce in group {group.name}: {variant}")
            try:
                outcome.collectives.append(_all_reduce(subject, group, variant, rails, environment))
            except OperationError as error:
                outcome.left_out.append(f"all-reduce, {variant}: {error}")
                return


def _variants(subject: Subject) -> list[tuple[str, Sequence[int], dict[str, str]]]:
    """Returns each rail alone, all together, and with RDMA both algorithms."""
    count = len(subject.nodes[0].fabric["rails"])
    alone: list[tuple[str, Sequence[int], dict[str, str]]] = [(f"rail {rail}", (rail,), {}) for rail in range(count)]
    if not subject.gpus:
        return alone
    every = range(count)
    together: list[tuple[str, Sequence[int], dict[str, str]]] = [("all rails", every, {})] if count > 1 else []
    return [*alone, *together, *((name, every, {"NCCL_ALGO": name}) for name in ("Ring", "Tree"))]


def _all_reduce(
    subject: Subject, group: GroupPlan, variant: str, rails: Sequence[int], environment: dict[str, str]
) -> Collective:
    nodes = subject.group_nodes(group)
    low, high = _COLLECTIVE_PORTS
    meeting = {"head": nodes[0].addresses[rails[0]], "port": low + secrets.randbelow(high - low), "nodes": len(nodes)}

    def run(place: int) -> dict[str, Any] | OperationError:
        request = {
            **_container(subject, group.ranks[place], nodes[place], rails, environment),
            **meeting,
            "node": place,
        }
        try:
            return run_on_node(
                nodes[place].connection,
                subject.storage_folder,
                "fabric-all-reduce",
                request,
                timeout_seconds=_COLLECTIVE_SECONDS + 30,
            )
        except NodeError as error:
            return error

    answers = _at_once(run, range(len(nodes)))
    failed = [str(answer) for answer in answers if isinstance(answer, OperationError)]
    if failed:
        raise OperationError("\n".join(failed))
    return Collective(
        group.name,
        variant,
        {int(size): rate for size, rate in answers[0]["gigabits_per_second"].items()},
        {node.name: answer["nccl"] for node, answer in zip(nodes, answers, strict=True) if answer["nccl"]},
        answers[0]["backend"],
    )


def _container(
    subject: Subject, rank: RankPlan, node: CheckedNode, rails: Sequence[int], environment: dict[str, str]
) -> dict[str, Any]:
    assert subject.release
    return {
        "fabric": {**node.fabric, "rails": [node.fabric["rails"][rail] for rail in rails]},
        "image": subject.release.image.reference,
        "environment": {**rank.environment, **environment},
        "mounts": [mount.model_dump() for mount in rank.mounts],
        "devices": list(rank.devices),
        "capabilities": list(rank.capabilities),
        "gpus": rank.gpus,
        "processes": max(1, subject.gpus),
        "locked_memory_bytes": rank.locked_memory_bytes,
        "open_files": rank.open_files,
        "seconds": _COLLECTIVE_SECONDS,
    }
