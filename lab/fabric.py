"""Virtual nodes up, down and asked for their state: what `./fleet lab` and the tests call."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab import places
from lab.commands import Report
from lab.docker_engine import DockerEngine, engine_in_use, existing_engine, stop_unused_engine
from lab.errors import LabError
from lab.images import NodeSystem, node_image
from lab.keys import ensure_login_key
from lab.locks import exclusive, try_exclusive
from lab.network import remove_networks
from lab.node import NodeRecipe, node_containers, node_recipe, remove
from lab.nodes import FabricNodes
from lab.packages import ensure
from lab.status import NodeStatus, node_statuses
from spec.cluster import Cluster

Binds = Sequence[tuple[Path, str]]

# A program that a killed call had started may still hold the lock: at worst the installation of a package.
_LOCK_PATIENCE_SECONDS = 30
_LEAST_GBIT, _MOST_GBIT = 0.001, 400


def up(
    name: str,
    cluster: Cluster,
    *,
    nodes: Sequence[str] | None = None,
    link_gbit: float | None = None,
    binds: Binds = (),
    systems: Mapping[str, NodeSystem] | None = None,
    report: Report,
) -> list[NodeStatus]:
    """Makes sure that nodes of a cluster are there as containers and answer.

    A node that is there as asked is not touched; one that stands still is started; one that was made otherwise, is
    half-made or does not answer is made anew. Nodes that are not named stay as they are.

    Args:
        name: name of the fabric; fabrics of different names do not touch each other.
        cluster: the cluster, with `virtual_fabric`.
        nodes: names of its nodes; all if absent.
        link_gbit: what each node may send on each rail; no limit if absent.
        binds: folders of this machine that the nodes see, read-only: (folder, target in the node).
        systems: what nodes are inside, by their names; those that are not named are as `NodeSystem` is by default.
        report: receives progress lines.

    Returns:
        The state of the nodes that were asked for; all are ready.

    Raises:
        LabError: it cannot be done; nodes and networks that this call made are gone again.
    """
    wanted, folders = _known_nodes(cluster, nodes), _existing_folders(binds)
    _require_possible_speed(link_gbit)
    with _fabric_lock(name, report):
        try:
            with engine_in_use(report) as engine:
                recipes = _recipes(engine, name, cluster, wanted, folders, systems or {}, report)
                return FabricNodes(engine, name, cluster, report).bring_up(recipes, link_gbit)
        except BaseException:
            stop_unused_engine(report)
            raise


def down(name: str, *, report: Report) -> None:
    """Removes all nodes, networks and volumes of a fabric, and our own Docker engine if no other fabric is on it.

    Args:
        name: name of the fabric.
        report: receives progress lines.

    Raises:
        LabError: something could not be removed.
    """
    with _fabric_lock(name, report):
        if existing_engine() is not None:
            # An engine of ours that was killed is started once more: only it can remove what it made.
            with engine_in_use(report) as engine:
                _remove_fabric(engine, name, report)
        stop_unused_engine(report)


def status(name: str, cluster: Cluster) -> list[NodeStatus]:
    """Asks all nodes of a cluster for their state; changes and starts nothing."""
    engine = existing_engine()
    containers = node_containers(engine, name) if engine is not None and engine.answers else {}
    return node_statuses(name, cluster, list(cluster.nodes), containers)


@contextmanager
def _fabric_lock(name: str, report: Report) -> Iterator[None]:
    path = places.lock_folder() / f"fabric-{name}"
    with try_exclusive(path) as free:
        if free:
            yield
            return
    report(f"wait for another process that changes fabric {name}")
    with exclusive(path, f"change fabric {name}", _LOCK_PATIENCE_SECONDS):
        yield


def _known_nodes(cluster: Cluster, nodes: Sequence[str] | None) -> list[str]:
    wanted = list(cluster.nodes) if nodes is None else list(nodes)
    for node in wanted:
        if node not in cluster.nodes:
            raise LabError(f"make virtual node {node}", "the cluster lacks it", f"It has: {', '.join(cluster.nodes)}")
    return wanted


def _require_possible_speed(link_gbit: float | None) -> None:
    if link_gbit is not None and not _LEAST_GBIT <= link_gbit <= _MOST_GBIT:
        raise LabError(
            f"limit links to {link_gbit} Gbit/s",
            "that is no speed of a link",
            f"Give {_LEAST_GBIT} to {_MOST_GBIT} Gbit/s, or nothing for no limit.",
        )


def _existing_folders(binds: Binds) -> tuple[tuple[str, str], ...]:
    for source, _target in binds:
        if not source.is_dir():
            raise LabError(f"show {source} to the virtual nodes", "there is no such folder", "Make it first.")
    return tuple((str(source.resolve()), target) for source, target in binds)


def _recipes(
    engine: DockerEngine,
    name: str,
    cluster: Cluster,
    nodes: list[str],
    binds: tuple[tuple[str, str], ...],
    systems: Mapping[str, NodeSystem],
    report: Report,
) -> list[NodeRecipe]:
    ensure(["ssh"], ["openssh-client"], "to log in to the virtual nodes", report)
    login_key = ensure_login_key(cluster)
    inside = {node: systems.get(node, NodeSystem()) for node in nodes}
    images = {suite: node_image(engine, suite, report) for suite in {system.suite for system in inside.values()}}
    return [
        node_recipe(name, cluster, node, images[system.suite], login_key, binds, system.image_store)
        for node, system in inside.items()
    ]


def _remove_fabric(engine: DockerEngine, name: str, report: Report) -> None:
    report(f"remove fabric {name}")
    remove(engine, engine.labelled("container", name))
    if volumes := engine.labelled("volume", name):
        engine.docker("volume", "rm", *volumes, what=f"remove the volumes of fabric {name}")
    remove_networks(engine, name)
