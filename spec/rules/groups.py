"""Rules about which nodes a group has, where they hang and which ports they use."""

from collections.abc import Iterator, Mapping

from spec.errors import Problem
from spec.executors import MENTAT_PORT
from spec.rules.rule import Estimates, refuse, warn
from spec.rules.words import listed
from spec.situation import Situation


@refuse
def nodes_exist(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """Every node of a group is in the cluster's file.

    Source: design.md section 2, names of a stack file are looked up.
    """
    known = situation.cluster.nodes
    for group, nodes in situation.config.groups.items():
        for node in nodes:
            if node not in known:
                yield situation.problem(
                    f"groups/{group}",
                    node,
                    f"the cluster {situation.config.cluster} has no node of this name",
                    f"use one of: {', '.join(known)}; or add it to {situation.cluster_file}",
                )


@refuse
def ports_differ(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """What listens on a node has a port of its own.

    Source: facts/peers.md 91 (port in use); facts/seed-repos.md 5.3 (mentat's 6379).
    """
    taken = {"port": situation.config.port, "master_port": situation.config.master_port}
    others = {"ssh of the cluster": situation.cluster.ssh.port}
    if situation.config.executor == "ray":
        others["mentat's daemon"] = MENTAT_PORT
    if taken["port"] == taken["master_port"]:
        yield _port_problem(situation, "master_port", taken["master_port"], "`port`")
    for key, port in taken.items():
        for name, other in others.items():
            if port == other:
                yield _port_problem(situation, key, port, name)


@refuse
def groups_stay_inside_a_switch(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """A group lies inside one switch unless the stack says `across_switches: true`.

    Source: seed 000, "each pair within one switch (no ISL traffic)"; design.md section 6.
    """
    if situation.config.across_switches:
        return
    for group in situation.config.groups:
        switches = _nodes_by_switch(situation, group)
        if len(switches) > 1:
            places = "; ".join(f"{switch}: {listed(nodes)}" for switch, nodes in switches.items())
            yield situation.problem(
                f"groups/{group}",
                list(situation.config.groups[group]),
                f"the group lies on {len(switches)} switches ({places}): every step would cross the link between them",
                "take nodes of one switch, or say `across_switches: true`",
            )


@refuse
def across_switches_is_needed(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """`across_switches` is said only where a group really lies across switches.

    Source: issue 4, an override that no longer overrides anything is an error.
    """
    crossing = [group for group in situation.config.groups if len(_nodes_by_switch(situation, group)) > 1]
    if situation.config.across_switches and not crossing:
        yield situation.problem(
            "across_switches",
            True,
            f"each of the groups ({listed(situation.config.groups)}) lies inside one switch: nothing is allowed by it",
            "remove the key",
        )


@warn
def groups_are_of_one_size(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """All groups of a pool have the same number of nodes.

    Source: seed 000, the pool of three equal pairs; one set of engine arguments is sized for one number of ranks.
    """
    sizes = {group: len(nodes) for group, nodes in situation.config.groups.items()}
    if len(set(sizes.values())) > 1:
        shown = listed(f"{group} has {size}" for group, size in sizes.items())
        yield situation.problem(
            "groups",
            sizes,
            f"the groups differ in size ({shown}), and all take the same engine arguments: weights and cache of a rank "
            f"differ up to {max(sizes.values())} / {min(sizes.values())}",
            "make them equal, or make a stack of each size",
        )


@warn
def single_node_needs_no_rdma(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """A group of one node does not ask for RDMA.

    Source: facts/peers.md 20 (a solo run that demands InfiniBand fails without a cable).
    """
    if situation.config.fabric.kind != "roce":
        return
    for group, nodes in situation.config.groups.items():
        if len(nodes) == 1:
            yield situation.problem(
                "fabric/kind",
                "roce",
                f"the group {group} has 1 node and so 0 peers, and yet needs an RDMA device with a cabled port",
                "choose `kind: ethernet`, whose sockets one node never uses",
            )


def _nodes_by_switch(situation: Situation, group: str) -> Mapping[str, list[str]]:
    switches: dict[str, list[str]] = {}
    for node in situation.config.groups[group]:
        switches.setdefault(situation.cluster.nodes[node].switch, []).append(node)
    return switches


def _port_problem(situation: Situation, key: str, port: int, other: str) -> Problem:
    return situation.problem(key, port, f"{other} listens on {port}, too", f"give `{key}` another number")
