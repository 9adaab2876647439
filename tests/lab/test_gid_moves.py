"""A node reboots and its GID indexes have moved: the rank finds the new one, since no Release holds any."""

import io
import re
import subprocess
import tarfile
from pathlib import Path

import yaml

from lab.docker_engine import existing_engine
from lab.node import container_name
from ops.remote import ssh_command
from spec.connection import connection_to
from tests.sysfs_tree import V1, V2, PortTable, Tree, write_tree
from tests.virtual import FABRIC, Project, cheap_deployment, wait_until

SYSFS = "/etc/gb10-serving-lab/sysfs"
NODES = ("test-1", "test-2")


def put_tree(project: Project, node: str, folder: Path, index: int, entry: str | None = None) -> None:
    """Puts a made-up /sys on a node in which the RoCE v2 entry, of its rail's address or another, has this index."""
    address = entry or project.cluster.nodes[node].rails[0].address
    empty = [None] * (index - 1)
    slots = [*empty, (address, V1, "rail0"), (address, V2, "rail0")]
    tree = Tree({"rail0": ("up", 1500)}, {"rocep1s0f0:1": PortTable(slots)})
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(write_tree(folder, tree), SYSFS.lstrip("/"))
    subprocess.run(
        ssh_command(connection_to(project.cluster, node), f"rm -rf {SYSFS}/* ; tar -x -f - -C /"),
        input=buffer.getvalue(),
        check=True,
    )


def gid_index(project: Project, node: str, number: int) -> str | None:
    """Returns what the engine of a rank was told, none while it does not run."""
    rank = f"gb10-one-main-rank{number}"
    engine = project.status(node, rank).get("engine", {}).get("process")
    text = project.on_node(node, f"docker exec {rank} cat /proc/{engine}/environ", check=False) if engine else ""
    found = re.search(r"\0NCCL_IB_GID_INDEX=(\d+)\0", f"\0{text}\0")
    return found[1] if found else None


def restart_nodes(*nodes: str) -> None:
    engine = existing_engine()
    assert engine is not None
    engine.docker("restart", *(container_name(FABRIC, node) for node in nodes), what="restart nodes")


def test_a_node_that_comes_back_with_other_indexes_serves_with_them(project: Project, tmp_path: Path) -> None:
    catalog = Path(project.folder / "catalog").resolve()
    cluster = yaml.safe_load((catalog / "clusters" / "test.yaml").read_text())
    cluster["virtual_fabric"]["sysfs_folder"] = SYSFS
    for node in cluster["nodes"].values():
        node["rails"][0]["hca"] = "rocep1s0f0"
    (catalog / "clusters" / "test-roce.yaml").write_text(yaml.safe_dump(cluster))
    for node in NODES:
        put_tree(project, node, tmp_path / node, 3)
    restart_nodes(*NODES)
    wait_until(lambda: all(project.on_node(node, "docker version", check=False) for node in NODES), "the nodes")

    deployment = cheap_deployment(*NODES) | {"cluster": "test-roce", "fabric": {"kind": "roce"}}
    run = project.up("one", deployment)
    assert run.code == 0, run.output
    assert [gid_index(project, node, number) for number, node in enumerate(NODES)] == ["3", "3"]

    put_tree(project, NODES[1], tmp_path / "moved", 5)
    restart_nodes(NODES[1])
    wait_until(lambda: gid_index(project, NODES[1], 1) == "5", "the new index", 120)
    wait_until(lambda: project.answers(NODES[0]), "the group to come back", 120)
    assert gid_index(project, NODES[0], 0) == "3"
    assert project.preview("one").changed() == set(), "the index is no part of the deployment"

    # Somebody rewires the node: preflight refuses the next change, and what serves goes on serving.
    run_on = project.status(NODES[1], "gb10-one-main-rank1")["engine"]["process"]
    put_tree(project, NODES[1], tmp_path / "rewired", 5, "203.0.113.9")
    changed = project.up("one", deployment | {"engine": deployment["engine"] | {"max_model_len": 1024}})
    assert changed.code != 0
    assert "[no-gid-entry]" in changed.output, changed.output
    assert "<- rail 0" in changed.output, "the node's table is shown"
    assert project.answers(NODES[0])
    assert project.status(NODES[1], "gb10-one-main-rank1")["engine"]["process"] == run_on
