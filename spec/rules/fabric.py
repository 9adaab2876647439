"""Rules about the fabric: what nodes have for it, and what was chosen of it."""

import ipaddress
import itertools
from collections.abc import Iterator

from spec.catalog import STACK_KEY
from spec.cluster import Rail
from spec.errors import Problem
from spec.fabric import fabric_problems, settings_problems
from spec.rules.rule import Estimates, refuse, warn
from spec.rules.words import listed
from spec.situation import Situation

_DOCKERS_OPEN_FILES = 1024


@refuse
def rails_have_what_the_fabric_needs(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """Every node has the rails of the deployment, with an IPv4 address and, for RoCE, an RDMA device.

    Source: facts/peers.md 1, 11, 13, 29 (interfaces and addresses that a node does not have); seed 000.
    """
    for name in _used_nodes(situation):
        node = situation.cluster.nodes[name]
        yield from fabric_problems(node, situation.config.fabric, situation.cluster_file, f"nodes/{name}")


@refuse
def fabric_choices_have_an_effect(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """Every choice of NCCL is one that this kind of fabric reads.

    Source: issue 4, an override that no longer overrides anything is an error.
    """
    yield from settings_problems(situation.config.fabric, situation.file, f"config/{STACK_KEY}/fabric")


@refuse
def virtual_fabric_has_no_accelerators(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """The virtual fabric is for nodes without accelerators.

    Source: seed 000, NCCL that is told nothing falls back to sockets over the management LAN in silence.
    """
    gpus = situation.hardware.gpus
    if situation.config.fabric.kind == "virtual" and gpus:
        yield situation.problem(
            "fabric/kind",
            "virtual",
            f"a node of {situation.config.cluster} has {gpus} accelerator(s), and this kind sets no transport for NCCL",
            "choose roce, ethernet or nvlink",
        )


@refuse
def nvlink_stays_on_one_node(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """NVLink joins the accelerators of one node.

    Source: seed 000, the H200 reference: one host with NVLink; GB10 has none.
    """
    if situation.config.fabric.kind != "nvlink":
        return
    for group, nodes in situation.config.groups.items():
        if len(nodes) > 1:
            yield situation.problem(
                f"groups/{group}",
                list(nodes),
                f"{len(nodes)} nodes meet over {len(nodes) - 1} or more links, none of which is NVLink",
                "list one node, or choose the fabric kind roce or ethernet",
            )


@warn
def rails_lie_apart(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """Each rail has a network of its own, in which all nodes of the deployment meet.

    Source: facts/peers.md 7, 14, 17 and 19 (twins in one subnet, addresses of another one); facts/seed-repos.md 5.1
    (two subnets for both roots).
    """
    rails = situation.config.fabric.rails
    networks = [_smallest_network(_addresses_on(situation, position)) for position in rails]
    for (one, first), (other, second) in itertools.combinations(zip(rails, networks, strict=True), 2):
        if first and second and first.overlaps(second):
            yield Problem(
                situation.cluster_file,
                f"nodes/*/rails/{other}",
                _addresses_on(situation, other),
                f"rail {one} takes at least the network {first} and rail {other} at least {second}, which overlap: a "
                "device's traffic may leave by the other, or a node's rails are in another order",
                "give each rail a network of its own, or acknowledge that the routes of both were checked",
            )


@warn
def sockets_are_fast_enough(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """Tensors between nodes go over RDMA.

    Source: seed 003 (5.3 to 7.0 tok/s over 1 GbE) against seed 000 (26.5 tok/s; 539 against 1,963 tok/s over the LAN).
    """
    if situation.config.fabric.kind != "ethernet" or not situation.hardware.gpus:
        return
    most = max(len(nodes) for nodes in situation.config.groups.values())
    if most == 1:
        return
    unused = sorted({rail.hca for name in _used_nodes(situation) for rail in _rails(situation, name) if rail.hca})
    yield situation.problem(
        "fabric/kind",
        "ethernet",
        f"{most} ranks meet over sockets: GLM at TP4 decoded 5.3 to 7.0 tok/s over 1 GbE and 26.5 over RoCE, "
        f"26.5 / 7.0 = {26.5 / 7.0:.1f} times as fast" + (f"; {listed(unused)} stay unused" if unused else ""),
        "choose `kind: roce`" if unused else "acknowledge that there is no RDMA",
    )


@refuse
def ranks_may_open_files(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """Ranks of several nodes may open more files than Docker's default.

    Source: seed 000, six ranks exceed nofile=1024, "four ranks fit under it by luck".
    """
    allowed, most = situation.cluster.limits.open_files, max(map(len, situation.config.groups.values()))
    if most > 1 and allowed <= _DOCKERS_OPEN_FILES:
        yield Problem(
            situation.cluster_file,
            "limits/open_files",
            allowed,
            f"a rank may open {allowed:,} files, {allowed:,} / {most - 1} = {allowed // (most - 1)} for each peer: six "
            "ranks ended with `Too many open files`, four fit by luck",
            "remove the key: the default is 1048576",
        )


@warn
def rdma_may_lock_memory(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """Ranks on RDMA may lock as much memory as they register.

    Source: seed 000 and all recipes, `--ulimit memlock=-1:-1` (facts/seed-repos.md 3.1).
    """
    allowed = situation.cluster.limits.locked_memory_bytes
    if situation.config.fabric.kind == "roce" and allowed != -1:
        yield Problem(
            situation.cluster_file,
            "limits/locked_memory_bytes",
            allowed,
            f"RDMA locks what it registers, and a rank may lock {allowed:,} bytes; every source allows any number",
            "remove the key: the default is -1, no limit",
        )


def _used_nodes(situation: Situation) -> tuple[str, ...]:
    return tuple(node for nodes in situation.config.groups.values() for node in nodes)


def _rails(situation: Situation, name: str) -> list[Rail]:
    node = situation.cluster.nodes[name]
    return [node.rails[position] for position in situation.config.fabric.rails if position < len(node.rails)]


def _addresses_on(situation: Situation, position: int) -> list[str]:
    nodes = (situation.cluster.nodes[name] for name in _used_nodes(situation))
    return [node.rails[position].address for node in nodes if position < len(node.rails)]


def _smallest_network(addresses: list[str]) -> ipaddress.IPv4Network | None:
    """Returns the smallest network that holds all addresses; none where one is not IPv4."""
    found = [ipaddress.ip_address(address) for address in addresses]
    if not found or any(address.version != 4 for address in found):
        return None
    network = ipaddress.IPv4Network(addresses[0])
    while not all(address in network for address in found):
        network = network.supernet()
    return network
