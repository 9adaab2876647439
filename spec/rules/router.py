"""Rules about the router before a pool."""

from collections.abc import Iterator, Mapping

from spec.errors import Problem
from spec.executors import MENTAT_PORT
from spec.rules.rule import Estimates, refuse, warn
from spec.situation import Situation


@refuse
def router_runs_on_a_known_node(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """The router's node is in the cluster's file.

    Source: design.md section 2, names of a stack file are looked up.
    """
    router = situation.config.router
    if router and router.node not in situation.cluster.nodes:
        yield situation.problem(
            "router/node",
            router.node,
            f"the cluster {situation.config.cluster} has no node of this name",
            f"use one of: {', '.join(situation.cluster.nodes)}; or add it to {situation.cluster_file}",
        )


@refuse
def router_has_somebody_to_ask(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """A router stands before groups that answer HTTP.

    Source: facts/seed-repos.md section 7, an offline job has no API.
    """
    if situation.config.router and situation.config.executor == "external_launcher":
        yield situation.problem(
            "router",
            situation.config.router.node,
            f"the {len(situation.config.groups)} groups run an offline job: 0 of them answer requests",
            "remove the key, or use an executor that serves",
        )


@refuse
def router_ports_are_free(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """The router and what heads tell it have ports of their own.

    Source: facts/peers.md 91 (port in use); host networking: all of a node's containers share its ports.
    """
    router, config = situation.config.router, situation.config
    if router is None:
        return
    on_heads = _taken(situation)
    ranks = {node for nodes in config.groups.values() for node in nodes}
    on_router = {**on_heads, "router/health_port": router.health_port} if router.node in ranks else _always(situation)
    for key, port, others in (
        ("router/health_port", router.health_port, on_heads),
        ("router/port", router.port, on_router),
    ):
        for name, other in others.items():
            if port == other:
                yield situation.problem(
                    key, port, f"{name} listens on {port} of the same node, too", f"give `{key}` another number"
                )


@refuse
def stop_grace_fits_the_drain(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """Draining and stopping together end before a supervisor gives up waiting for its engine.

    Source: runtime/rank ends an engine that was asked to stop after 600 s; spec/supervision.py.
    """
    router, grace = situation.config.router, situation.config.stop_grace_seconds
    if router and router.drain_seconds + grace > _LONGEST_SECONDS:
        yield situation.problem(
            "router/drain_seconds",
            router.drain_seconds,
            f"{router.drain_seconds} s to drain and {grace} s to stop are {router.drain_seconds + grace} s, more than "
            f"the {_LONGEST_SECONDS} s after which Docker kills a rank",
            f"at most {_LONGEST_SECONDS - grace} with this `stop_grace_seconds`",
        )


@warn
def pool_has_more_than_one_member(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """A router stands before at least two groups.

    Source: issue 8, a change to one member leaves the others serving.
    """
    if situation.config.router and len(situation.config.groups) == 1:
        yield situation.problem(
            "router",
            situation.config.router.node,
            "there is 1 group: while it restarts, 0 others answer, and users get 503",
            "acknowledge it where the address is meant to stay the same while pools come and go",
        )


_LONGEST_SECONDS = 600


def _always(situation: Situation) -> Mapping[str, int]:
    return {"ssh of the cluster": situation.cluster.ssh.port}


def _taken(situation: Situation) -> Mapping[str, int]:
    """Returns what listens on a node that runs a head."""
    config = situation.config
    taken = {
        **_always(situation),
        "`port`": config.port,
        "`master_port`": config.master_port,
        "`supervision/port`": config.supervision.port,
    }
    return {**taken, "mentat's daemon": MENTAT_PORT} if config.executor == "ray" else taken
