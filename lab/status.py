"""What virtual nodes answer when they are asked over ssh, as a controller asks them."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lab.node import NodeContainer, container_name
from lab.ssh import ssh_command
from spec.cluster import Cluster

_ANSWER_SECONDS = 15
_QUESTION = "echo ssh; docker version --format 'docker {{{{.Server.Version}}}}'; tc -json qdisc show dev {interface}"


@dataclass(frozen=True)
class NodeStatus:
    """A virtual node as it is now.

    Attributes:
        name: name of the node.
        container: name of its container, for `docker restart` and the like.
        running: whether the container runs (a paused one does not).
        ssh_answers: whether a login with the pinned host key succeeds.
        docker_answers: whether the node's own Docker engine answers.
        management_address: where it is managed.
        rail_addresses: its addresses on the rails.
        link_gbit: what rail 0 may send; none for no limit, or where the node does not answer.
    """

    name: str
    container: str
    running: bool
    ssh_answers: bool
    docker_answers: bool
    management_address: str
    rail_addresses: tuple[str, ...]
    link_gbit: float | None

    @property
    def ready(self) -> bool:
        """Whether a controller can work with it."""
        return self.running and self.ssh_answers and self.docker_answers


def _ask(cluster: Cluster, node: str) -> list[str]:
    """Returns the lines of a node's answer; none if it does not let us in."""
    question = _QUESTION.format(interface=cluster.nodes[node].rails[0].interface)
    command = [*ssh_command(cluster, node), question]
    try:
        answer = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return []
    return answer.stdout.splitlines()


def _link_gbit(lines: list[str]) -> float | None:
    for line in lines:
        if line.startswith("["):
            disciplines = [entry for entry in json.loads(line) if entry.get("kind") == "tbf"]
            return disciplines[0]["options"]["rate"] * 8 / 1e9 if disciplines else None
    return None


def node_status(fabric: str, cluster: Cluster, node: str, container: NodeContainer | None) -> NodeStatus:
    """Asks one node.

    Args:
        fabric: name of the fabric.
        cluster: where the node is described.
        node: its name.
        container: its container, if there is one.
    """
    running = container is not None and container.state == "running"
    lines = _ask(cluster, node) if running else []
    described = cluster.nodes[node]
    return NodeStatus(
        name=node,
        container=container_name(fabric, node),
        running=running,
        ssh_answers="ssh" in lines,
        docker_answers=any(line.startswith("docker ") and line != "docker " for line in lines),
        management_address=described.management_address,
        rail_addresses=tuple(rail.address for rail in described.rails),
        link_gbit=_link_gbit(lines),
    )


def node_statuses(
    fabric: str, cluster: Cluster, nodes: list[str], containers: dict[str, NodeContainer]
) -> list[NodeStatus]:
    """Asks several nodes at once; the answers come in the order of `nodes`."""
    with ThreadPoolExecutor(max_workers=max(1, min(8, len(nodes)))) as pool:
        return list(pool.map(lambda node: node_status(fabric, cluster, node, containers.get(node)), nodes))
