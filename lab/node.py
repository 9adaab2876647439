"""A virtual node: a container with its own sshd, dockerd and addresses."""

import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path

from lab.docker_engine import FABRIC_LABEL, DockerEngine
from lab.errors import LabError
from lab.keys import host_key, private_text, require_derived_host_key
from lab.network import management_network, rail_networks
from spec.base import content_hash
from spec.cluster import Cluster, Rail

NODE_LABEL = "gb10-serving.node"
RECIPE_LABEL = "gb10-serving.recipe"

_FILES = Path(__file__).parent / "node_files"
_INIT = "usr/local/sbin/node-init"
_SETTINGS = "etc/gb10-serving-lab"
# What a machine's own dockerd needs beside Docker's default; --privileged would ask for more than a sandbox may have.
_CAPABILITIES = (
    "AUDIT_WRITE",
    "DAC_READ_SEARCH",
    "IPC_LOCK",
    "LEASE",
    "LINUX_IMMUTABLE",
    "MKNOD",
    "NET_ADMIN",
    "NET_RAW",
    "SETFCAP",
    "SETPCAP",
    "SYSLOG",
    "SYS_ADMIN",
    "SYS_CHROOT",
    "SYS_NICE",
    "SYS_PTRACE",
)


@dataclass(frozen=True)
class NodeRecipe:
    """All that decides what a node's container is; a container made from another recipe is made anew.

    Attributes:
        fabric: name of the fabric.
        node: name of the node.
        image: reference of the nodes' image.
        management: network and address of the management.
        rails: network, address and interface of each rail.
        ssh_port: where sshd listens.
        shared_memory_bytes: size of /dev/shm.
        binds: folders of this machine that the node sees, read-only: (source, target).
        login_key: public line of the key that may log in.
        image_store: where its Docker engine keeps images: classic or containerd.
    """

    fabric: str
    node: str
    image: str
    management: tuple[str, str]
    rails: tuple[tuple[str, str, str], ...]
    ssh_port: int
    shared_memory_bytes: int
    binds: tuple[tuple[str, str], ...]
    login_key: str
    image_store: str

    @property
    def container(self) -> str:
        """Name of the node's container."""
        return container_name(self.fabric, self.node)

    @property
    def identity(self) -> str:
        """Hash of the recipe and of the files that go into the node with it."""
        files = [(_FILES / name).read_text() for name in ("node-init", "sshd.conf")]
        return content_hash([repr(self), *files])[:16]


def container_name(fabric: str, node: str) -> str:
    """Returns the name of the container that is a node, for `docker restart`, `pause` and `kill`."""
    return f"gb10-serving-{fabric}-{node}"


def _rail_of(network_name: str, rail: Rail) -> tuple[str, str, str]:
    return network_name, rail.address, rail.interface


def node_recipe(
    fabric: str,
    cluster: Cluster,
    node: str,
    image: str,
    login_key: str,
    binds: tuple[tuple[str, str], ...],
    image_store: str = "classic",
) -> NodeRecipe:
    """Returns the recipe of a node as the cluster describes it.

    Raises:
        LabError: the cluster describes a node that cannot be made here.
    """
    require_derived_host_key(cluster, node)
    described, networks = cluster.nodes[node], rail_networks(fabric, cluster)
    if cluster.ssh.user != "root":
        raise LabError(f"make virtual node {node}", "its ssh.user is not root", "Virtual nodes only have root.")
    if len(networks) != len(described.rails):
        raise LabError(
            f"make virtual node {node}",
            f"it has {len(described.rails)} rails, the fabric has {len(networks)} rail subnets",
            "Give every node one rail for each of virtual_fabric.rail_subnets.",
        )
    return NodeRecipe(
        fabric=fabric,
        node=node,
        image=image,
        management=(management_network(fabric, cluster).name, described.management_address),
        rails=tuple(_rail_of(network.name, rail) for network, rail in zip(networks, described.rails, strict=True)),
        ssh_port=cluster.ssh.port,
        shared_memory_bytes=cluster.limits.shared_memory_bytes,
        binds=binds,
        login_key=login_key,
        image_store=image_store,
    )


def create_command(recipe: NodeRecipe) -> list[str]:
    """Returns the arguments of the Docker client that make a node's container."""
    label = f"{FABRIC_LABEL}={recipe.fabric}"
    network, address = recipe.management
    options = [
        f"--name={recipe.container}",
        f"--hostname={recipe.node}",
        f"--network={network}",
        f"--ip={address}",
        f"--label={label}",
        f"--label={NODE_LABEL}={recipe.node}",
        f"--label={RECIPE_LABEL}={recipe.identity}",
        *(f"--cap-add={capability}" for capability in _CAPABILITIES),
        "--security-opt=seccomp=unconfined",
        "--security-opt=apparmor=unconfined",
        "--cgroupns=private",
        f"--shm-size={recipe.shared_memory_bytes}",
        "--tmpfs=/run:exec,mode=755",
        f"--mount=type=volume,target=/var/lib/docker,volume-label={label}",
        *(f"--mount=type=bind,source={source},target={target},readonly" for source, target in recipe.binds),
        "--stop-timeout=30",
        "--log-opt=max-size=10m",
    ]
    return ["create", *options, recipe.image, f"/{_INIT}", "boot"]


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    tar.addfile(member, io.BytesIO(content))


def _add_folder(tar: tarfile.TarFile, name: str, mode: int) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.mode = tarfile.DIRTYPE, mode
    tar.addfile(member)


def node_files(recipe: NodeRecipe) -> bytes:
    """Returns the tar of all files that are put into a node's container before it starts."""
    rails = "".join(f"{address} {interface}\n" for _network, address, interface in recipe.rails)
    docker_settings = {"features": {"containerd-snapshotter": recipe.image_store == "containerd"}}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        _add(tar, _INIT, (_FILES / "node-init").read_bytes(), 0o755)
        _add(tar, "etc/ssh/sshd_config.d/gb10-serving-lab.conf", (_FILES / "sshd.conf").read_bytes())
        _add(tar, "etc/ssh/ssh_host_ed25519_key", private_text(host_key(recipe.node)), 0o600)
        _add_folder(tar, "root/.ssh", 0o700)
        _add(tar, "root/.ssh/authorized_keys", f"{recipe.login_key}\n".encode(), 0o600)
        _add(tar, "etc/docker/daemon.json", json.dumps(docker_settings).encode())
        _add_folder(tar, _SETTINGS, 0o755)
        _add(tar, f"{_SETTINGS}/rails", rails.encode())
        _add(tar, f"{_SETTINGS}/ssh_port", str(recipe.ssh_port).encode())
        _add(tar, f"{_SETTINGS}/link_bits", b"")
    return buffer.getvalue()


def create(engine: DockerEngine, recipe: NodeRecipe) -> None:
    """Makes a node's container, connects it to its networks and starts it."""
    what = f"make virtual node {recipe.node}"
    engine.docker(*create_command(recipe), what=what)
    for network, address, _interface in recipe.rails:
        engine.docker("network", "connect", "--ip", address, network, recipe.container, what=what)
    engine.docker("cp", "-", f"{recipe.container}:/", what=what, input_bytes=node_files(recipe))
    engine.docker("start", recipe.container, what=what)


def remove(engine: DockerEngine, containers: list[str]) -> None:
    """Removes containers of nodes with their volumes."""
    if containers:
        engine.docker("rm", "--force", "--volumes", *containers, what="remove virtual nodes")


def set_link_speed(engine: DockerEngine, container: str, link_gbit: float | None) -> None:
    """Limits what a node sends on each rail, now and after each restart; no limit if absent."""
    bits = "" if link_gbit is None else str(round(link_gbit * 1e9))
    engine.docker("exec", container, f"/{_INIT}", "link", bits, what=f"set the link speed of {container}")


@dataclass(frozen=True)
class NodeContainer:
    """A node's container as the engine has it.

    Attributes:
        container: its name.
        node: name of the node.
        recipe: identity of the recipe that it was made from.
        state: created, running, paused, restarting, removing, exited or dead.
    """

    container: str
    node: str
    recipe: str
    state: str


def node_containers(engine: DockerEngine, fabric: str) -> dict[str, NodeContainer]:
    """Returns the containers of a fabric by the names of their nodes."""
    ids = engine.labelled("container", fabric)
    if not ids:
        return {}
    found = {}
    for container in json.loads(engine.docker("container", "inspect", *ids, what=f"look at fabric {fabric}")):
        labels = container["Config"]["Labels"]
        node = labels[NODE_LABEL]
        found[node] = NodeContainer(
            container["Name"].removeprefix("/"), node, labels[RECIPE_LABEL], container["State"]["Status"]
        )
    return found
