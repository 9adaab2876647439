"""The Docker networks of a fabric: one for management and one a rail."""

import json
from dataclasses import dataclass

from lab.docker_engine import FABRIC_LABEL, DockerEngine
from lab.errors import LabError
from spec.cluster import Cluster, VirtualFabric


@dataclass(frozen=True)
class FabricNetwork:
    """A network that nodes of a fabric hang on.

    Attributes:
        name: its name in the Docker engine.
        subnet: its addresses.
    """

    name: str
    subnet: str


def virtual_fabric(cluster: Cluster) -> VirtualFabric:
    """Returns the networks that the cluster asks for.

    Raises:
        LabError: it asks for none: its nodes are real machines.
    """
    if cluster.virtual_fabric is None:
        raise LabError(
            "make virtual nodes",
            "the cluster has no virtual_fabric: its nodes are real machines",
            "Choose another cluster.",
        )
    return cluster.virtual_fabric


def management_network(fabric: str, cluster: Cluster) -> FabricNetwork:
    """Returns the network of the management addresses."""
    return FabricNetwork(f"gb10-serving-{fabric}-management", virtual_fabric(cluster).management_subnet)


def rail_networks(fabric: str, cluster: Cluster) -> list[FabricNetwork]:
    """Returns the networks of the rails, rail 0 first."""
    subnets = virtual_fabric(cluster).rail_subnets
    return [FabricNetwork(f"gb10-serving-{fabric}-rail{index}", subnet) for index, subnet in enumerate(subnets)]


def _existing_subnet(engine: DockerEngine, fabric: str, network: FabricNetwork) -> str | None:
    filters = ["--filter", f"label={FABRIC_LABEL}={fabric}", "--filter", f"name=^{network.name}$"]
    ids = engine.docker("network", "ls", "--quiet", *filters, what=f"look for network {network.name}").split()
    if not ids:
        return None
    description = json.loads(engine.docker("network", "inspect", ids[0], what=f"look at network {network.name}"))
    return description[0]["IPAM"]["Config"][0]["Subnet"]


def ensure_networks(engine: DockerEngine, fabric: str, cluster: Cluster) -> None:
    """Makes the networks of a fabric that are not there yet.

    Raises:
        LabError: one is there with another subnet, or cannot be made.
    """
    for network in [management_network(fabric, cluster), *rail_networks(fabric, cluster)]:
        subnet = _existing_subnet(engine, fabric, network)
        if subnet is None:
            _create(engine, fabric, network)
        elif subnet != network.subnet:
            raise LabError(
                f"make network {network.name}",
                f"it is there with subnet {subnet}, the cluster says {network.subnet}",
                "Run `./fleet lab down` first.",
            )


def _create(engine: DockerEngine, fabric: str, network: FabricNetwork) -> None:
    # Internal: a node reaches the other nodes and this machine, and nothing else.
    options = ["--internal", "--subnet", network.subnet, "--label", f"{FABRIC_LABEL}={fabric}"]
    engine.docker("network", "create", *options, network.name, what=f"make network {network.name} ({network.subnet})")


def remove_networks(engine: DockerEngine, fabric: str) -> None:
    """Removes all networks of a fabric."""
    if ids := engine.labelled("network", fabric):
        engine.docker("network", "rm", *ids, what=f"remove the networks of fabric {fabric}")
