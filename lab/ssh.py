"""Logging in to a cluster's node with nothing but what the cluster says: pinned host key, own login key."""

from lab.keys import login_key_path
from spec.cluster import Cluster


def ssh_command(cluster: Cluster, node: str) -> list[str]:
    """Returns the ssh command, without a remote command, that logs in to a node.

    The operator's own ssh settings and known hosts are neither read nor written.
    """
    described = cluster.nodes[node]
    address = described.management_address
    host = address if cluster.ssh.port == 22 else f"[{address}]:{cluster.ssh.port}"
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": str(cluster.ssh.connect_timeout_seconds),
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlgorithms": described.host_key.split()[0],
        "IdentitiesOnly": "yes",
        "KnownHostsCommand": f"/bin/echo {host} {described.host_key}",
        "LogLevel": "ERROR",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": "/dev/null",
    }
    arguments = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    identity = ["-i", str(login_key_path(cluster)), "-p", str(cluster.ssh.port)]
    return ["ssh", "-F", "none", *arguments, *identity, f"{cluster.ssh.user}@{address}"]
