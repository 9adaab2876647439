"""Rules about which nodes a group has."""

from collections.abc import Iterator

from spec.errors import Problem
from spec.rules.rule import Estimate, refuse
from spec.situation import Situation


@refuse
def nodes_exist(situation: Situation, estimates: dict[str, Estimate]) -> Iterator[Problem]:  # noqa: ARG001
    """Every node of a group is in the cluster's file."""
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
