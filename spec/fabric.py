"""The variables that make a rank talk over the fabric that was asked for, and over nothing else."""

from spec.cluster import Node


def fabric_environment(node: Node) -> dict[str, str]:
    """Returns the network variables of a rank on this node.

    Every library that opens a socket is told the interface by its exact name (`=` makes NCCL match the whole name), and
    vLLM the address, because its message queue otherwise advertises whatever the default route has.
    """
    rail = node.rails[0]
    return {
        "VLLM_HOST_IP": rail.address,
        "GLOO_SOCKET_IFNAME": rail.interface,
        "TP_SOCKET_IFNAME": rail.interface,
        "NCCL_SOCKET_IFNAME": f"={rail.interface}",
        "NCCL_SOCKET_FAMILY": "AF_INET",
    }
