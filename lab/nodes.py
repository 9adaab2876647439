"""Bringing the nodes of a fabric to what is asked for: start, make, make anew, wait."""

import math
import time
from dataclasses import dataclass

from lab.commands import Report
from lab.docker_engine import DockerEngine
from lab.errors import LabError
from lab.network import ensure_networks, remove_networks
from lab.node import NodeContainer, NodeRecipe, create, node_containers, remove, set_link_speed
from lab.status import NodeStatus, node_statuses
from spec.cluster import Cluster

_READY_PATIENCE_SECONDS = 60
_POLL_SECONDS = 0.2
# What brings a container back to life that stands still as it is.
_REVIVAL = {"exited": "start", "paused": "unpause"}


def _same_speed(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-4)


@dataclass(frozen=True)
class FabricNodes:
    """The nodes of one fabric on an engine.

    Attributes:
        engine: the Docker engine that they run on.
        fabric: name of the fabric.
        cluster: where they are described.
        report: receives progress lines.
    """

    engine: DockerEngine
    fabric: str
    cluster: Cluster
    report: Report

    def bring_up(self, recipes: list[NodeRecipe], link_gbit: float | None) -> list[NodeStatus]:
        """Makes sure that nodes are there as their recipes say and answer.

        Returns:
            Their state, in the order of the recipes; all are ready.

        Raises:
            LabError: it cannot be done; nodes and networks that this call made are gone again.
        """
        before = set(self._containers())
        try:
            ensure_networks(self.engine, self.fabric, self.cluster)
            self._require_ready(self._started_and_answering(recipes))
            return self._with_link_speed([recipe.node for recipe in recipes], link_gbit)
        except BaseException:
            self._take_back(before)
            raise

    def _containers(self) -> dict[str, NodeContainer]:
        return node_containers(self.engine, self.fabric)

    def _statuses(self, nodes: list[str]) -> list[NodeStatus]:
        return node_statuses(self.fabric, self.cluster, nodes, self._containers())

    def _started_and_answering(self, recipes: list[NodeRecipe]) -> list[NodeStatus]:
        """Starts or makes all nodes; those that were there and do not answer get a second chance as new ones."""
        nodes = [recipe.node for recipe in recipes]
        old = {recipe.node for recipe in recipes if self._kept(recipe)}
        for recipe in recipes:
            if recipe.node not in old:
                self._make(recipe)
        statuses = self._wait_until_ready(nodes)
        silent = {seen.name for seen in statuses if not seen.ready} & old
        for recipe in recipes:
            if recipe.node in silent:
                self._make(recipe)
        return self._wait_until_ready(nodes) if silent else statuses

    def _kept(self, recipe: NodeRecipe) -> bool:
        """Tells whether a node's container is as its recipe says and runs, having been started if need be."""
        container = self._containers().get(recipe.node)
        if container is None or container.recipe != recipe.identity:
            return False
        command = _REVIVAL.get(container.state)
        if command is not None:
            self.report(f"{command} node {recipe.node}")
            self.engine.docker(command, container.container, what=f"{command} virtual node {recipe.node}")
        return command is not None or container.state == "running"

    def _make(self, recipe: NodeRecipe) -> None:
        container = self._containers().get(recipe.node)
        if container is not None:
            self.report(f"remove node {recipe.node}: it was made otherwise, is half-made or does not answer")
            remove(self.engine, [container.container])
        self.report(f"make node {recipe.node}")
        create(self.engine, recipe)

    def _wait_until_ready(self, nodes: list[str]) -> list[NodeStatus]:
        """Waits until all nodes are ready, one of them has ended or the patience has; returns what was seen last."""
        end = time.monotonic() + _READY_PATIENCE_SECONDS
        while True:
            statuses = self._statuses(nodes)
            over = time.monotonic() >= end or any(not seen.running for seen in statuses)
            if over or all(seen.ready for seen in statuses):
                return statuses
            time.sleep(_POLL_SECONDS)

    def _require_ready(self, statuses: list[NodeStatus]) -> None:
        for seen in statuses:
            if not seen.ready:
                log = self.engine.output_of(seen.container)
                raise LabError(
                    f"make virtual node {seen.name}",
                    f"it does not come up (running: {seen.running}, ssh: {seen.ssh_answers}, "
                    f"docker: {seen.docker_answers}); the end of its log:\n{log}",
                    "Where Docker runs rootless or in a virtual machine, this machine cannot reach its containers.",
                )

    def _with_link_speed(self, nodes: list[str], link_gbit: float | None) -> list[NodeStatus]:
        statuses = self._statuses(nodes)
        others = [seen for seen in statuses if not _same_speed(seen.link_gbit, link_gbit)]
        if not others:
            return statuses
        self.report("links without limit" if link_gbit is None else f"limit links to {link_gbit:g} Gbit/s")
        for seen in others:
            set_link_speed(self.engine, seen.container, link_gbit)
        return self._statuses(nodes)

    def _take_back(self, before: set[str]) -> None:
        """Removes what a failed call made; nodes that were there before it stay."""
        self.report("take back what was made")
        present = self._containers()
        remove(self.engine, [container.container for node, container in present.items() if node not in before])
        if not before:
            remove_networks(self.engine, self.fabric)
