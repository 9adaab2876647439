"""How a controller reaches one node over ssh: one description for Docker and for every command."""

from spec.base import Strict
from spec.cluster import Cluster


class Connection(Strict):
    """All that an ssh client needs to reach one node, and to know that it is the right one.

    Attributes:
        node: the node's name in the cluster, for messages.
        address, user, port: where to log in.
        host_key: the only host key that is accepted (type and base64 text).
        identity_file: private key on the controller; none leaves it to the agent.
        connect_timeout_seconds: how long the node may take to answer.
    """

    node: str
    address: str
    user: str
    port: int
    host_key: str
    identity_file: str | None
    connect_timeout_seconds: int

    @property
    def docker_host(self) -> str:
        """The address in Docker's form."""
        return f"ssh://{self.user}@{self.address}:{self.port}"

    def ssh_options(self) -> tuple[str, ...]:
        """Returns the options of `ssh` as argv words.

        The host key is pinned through KnownHostsCommand, so that neither files of the controller nor its user's
        known_hosts decide whom we talk to.
        """
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": str(self.connect_timeout_seconds),
            "ServerAliveInterval": "5",
            "ServerAliveCountMax": "3",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": "/dev/null",
            "GlobalKnownHostsFile": "/dev/null",
            "KnownHostsCommand": f"/bin/echo %H {self.host_key}",
            "HostKeyAlgorithms": self.host_key.split()[0],
            "LogLevel": "ERROR",
        }
        if self.identity_file:
            options |= {"IdentityFile": self.identity_file, "IdentitiesOnly": "yes"}
        return tuple(word for name, value in options.items() for word in ("-o", f"{name}={value}"))


def connection_to(cluster: Cluster, name: str) -> Connection:
    """Returns how to reach the node `name` of the cluster."""
    node = cluster.nodes[name]
    return Connection(
        node=name,
        address=node.management_address,
        user=cluster.ssh.user,
        port=cluster.ssh.port,
        host_key=node.host_key,
        identity_file=cluster.ssh.identity_file,
        connect_timeout_seconds=cluster.ssh.connect_timeout_seconds,
    )
