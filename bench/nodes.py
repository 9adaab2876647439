"""Virtual nodes to measure on: made, asked, limited and removed."""

import ipaddress
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab import fabric, places
from lab.keys import host_key, public_line
from lab.root_folders import building_folder, make_root
from ops.remote import ssh_command
from spec.cluster import Cluster
from spec.connection import connection_to
from spec.party import Party

FOLDER = "/srv/bench"
TOOLS = "/opt/rivals"
_TOOL_PACKAGES = ("aria2", "curl", "nginx-light", "python3-libtorrent")
_FIRST_HOST = 2


def cluster(name: str, management: str, rail: str, count: int, identity_file: Path) -> Cluster:
    """Returns a virtual cluster of so many nodes on these two networks."""
    nodes = {}
    for number in range(1, count + 1):
        node = f"{name}-{number}"
        first, second = (ipaddress.ip_network(net)[_FIRST_HOST + number] for net in (management, rail))
        nodes[node] = {
            "management_address": str(first),
            "host_key": public_line(host_key(node)),
            "switch": "virtual",
            "rails": [{"address": str(second), "interface": "rail0"}],
        }
    return Cluster.model_validate(
        {
            "hardware": "virtual",
            "ssh": {"identity_file": str(identity_file), "connect_timeout_seconds": 10},
            "limits": {"open_files": 20000, "locked_memory_bytes": 8388608, "shared_memory_bytes": 1 << 30},
            "virtual_fabric": {"management_subnet": management, "rail_subnets": [rail]},
            "nodes": nodes,
        }
    )


@dataclass(frozen=True)
class BenchNode:
    """One virtual node."""

    cluster: Cluster
    name: str

    @property
    def party(self) -> Party:
        """The node as a transfer knows it."""
        return Party(
            node=self.name,
            connection=connection_to(self.cluster, self.name),
            storage_folder="/var/lib/gb10-serving",
            address=self.address,
            switch="virtual",
        )

    @property
    def address(self) -> str:
        """Its fabric address."""
        return self.cluster.nodes[self.name].rails[0].address

    def run(self, text: str, seconds: int = 600) -> str:
        """Runs a shell text on the node and returns what it says.

        Raises:
            RuntimeError: it failed; with its words.
        """
        command = ssh_command(connection_to(self.cluster, self.name), text)
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
        if result.returncode:
            raise RuntimeError(f"{self.name}: {text}\n{result.stdout}{result.stderr}")
        return result.stdout

    def cpu_seconds(self) -> float:
        """Returns the processor time of everything on the node since it started."""
        text = self.run("cat /sys/fs/cgroup/cpuacct/cpuacct.usage 2>/dev/null || cat /sys/fs/cgroup/cpu.stat")
        words = text.split()
        return int(words[0]) / 1e9 if len(words) == 1 else int(words[words.index("usage_usec") + 1]) / 1e6


@contextmanager
def virtual_nodes(name: str, management: str, rail: str, count: int, with_tools: bool) -> Iterator[list[BenchNode]]:
    """Makes nodes, lets each log in to the others, and removes them afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        described = cluster(name, management, rail, count, Path(folder) / "id_ed25519")
        fabric.down(name, report=print)
        binds = [(_tools(), TOOLS)] if with_tools else []
        try:
            fabric.up(name, described, binds=binds, report=print)
            nodes = [BenchNode(described, node) for node in described.nodes]
            _let_them_log_in(nodes)
            yield nodes
        finally:
            fabric.down(name, report=print)


def limit_links(name: str, nodes: Sequence[BenchNode], gbit: float | None, with_tools: bool) -> None:
    """Limits what each node sends; no limit if none."""
    binds = [(_tools(), TOOLS)] if with_tools else []
    fabric.up(name, nodes[0].cluster, link_gbit=gbit, binds=binds, report=print)


def _let_them_log_in(nodes: Sequence[BenchNode]) -> None:
    source = nodes[0]
    source.run("ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519")
    key = source.run("cat /root/.ssh/id_ed25519.pub").strip()
    options = "Host *\\n  StrictHostKeyChecking no\\n  UserKnownHostsFile /dev/null\\n  LogLevel ERROR\\n"
    source.run(f"printf '{options}' > /root/.ssh/config")
    for node in nodes[1:]:
        node.run(f"echo {shlex.quote(key)} >> /root/.ssh/authorized_keys")


def _tools() -> Path:
    """Makes, once, a folder with the programs that are measured against; the nodes see it read-only."""
    folder = places.lab_cache_folder() / "transfer-rivals"
    if not folder.exists():
        with building_folder() as building:
            made = make_root("bookworm", _TOOL_PACKAGES, building, print)
            made.path.rename(folder)
    return folder
