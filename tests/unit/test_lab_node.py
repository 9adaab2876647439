import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from lab.errors import LabError
from lab.images import NodeSystem
from lab.node import NodeRecipe, container_name, create_command, node_files, node_recipe
from lab.ssh import ssh_command
from spec.cluster import Cluster

_LAB = Path(__file__).parents[2] / "catalog/clusters/lab.yaml"


@pytest.fixture
def cluster() -> Cluster:
    return Cluster.model_validate(yaml.safe_load(_LAB.read_text()))


@pytest.fixture
def recipe(cluster: Cluster) -> NodeRecipe:
    return node_recipe("lab", cluster, "lab-2", "node:1", "ssh-ed25519 LOGIN", (("/srv/vllm", "/opt/vllm"),))


def test_the_container_is_made_as_the_cluster_says(recipe: NodeRecipe) -> None:
    command = create_command(recipe)
    assert command[0] == "create"
    for option in (
        "--name=gb10-serving-lab-lab-2",
        "--hostname=lab-2",
        "--network=gb10-serving-lab-management",
        "--ip=198.51.100.12",
        "--label=gb10-serving.fabric=lab",
        "--label=gb10-serving.node=lab-2",
        f"--label=gb10-serving.recipe={recipe.identity}",
        "--shm-size=1073741824",
        "--cgroupns=private",
        "--mount=type=volume,target=/var/lib/docker,volume-label=gb10-serving.fabric=lab",
        "--mount=type=bind,source=/srv/vllm,target=/opt/vllm,readonly",
    ):
        assert option in command
    assert "--privileged" not in command
    assert command[-3] == "node:1"


def test_fabrics_have_names_of_their_own(cluster: Cluster) -> None:
    assert container_name("lab", "lab-2") != container_name("test", "lab-2")
    other = node_recipe("test", cluster, "lab-2", "node:1", "ssh-ed25519 LOGIN", ())
    assert other.management[0] == "gb10-serving-test-management"
    assert other.rails == (("gb10-serving-test-rail0", "198.51.100.76", "rail0"),)


def test_the_identity_follows_whatever_decides_the_container(recipe: NodeRecipe) -> None:
    assert replace(recipe).identity == recipe.identity
    changed = [
        replace(recipe, binds=()),
        replace(recipe, image="node:2"),
        replace(recipe, login_key="ssh-ed25519 OTHER"),
        replace(recipe, shared_memory_bytes=1),
    ]
    assert len({recipe.identity, *(other.identity for other in changed)}) == 5


def test_the_node_gets_its_keys_and_settings(recipe: NodeRecipe) -> None:
    with tarfile.open(fileobj=io.BytesIO(node_files(recipe))) as tar:
        modes = {member.name: member.mode for member in tar.getmembers()}
        rails = tar.extractfile("etc/gb10-serving-lab/rails")
        keys = tar.extractfile("root/.ssh/authorized_keys")
        assert rails is not None
        assert keys is not None
        assert rails.read() == b"198.51.100.76 rail0\n"
        assert keys.read() == b"ssh-ed25519 LOGIN\n"
    assert modes["etc/ssh/ssh_host_ed25519_key"] == 0o600
    assert modes["root/.ssh"] == 0o700
    assert modes["usr/local/sbin/node-init"] == 0o755


def test_a_node_with_another_number_of_rails_is_refused(cluster: Cluster) -> None:
    assert cluster.virtual_fabric is not None
    two = cluster.virtual_fabric.model_copy(update={"rail_subnets": ("198.51.100.64/26", "198.51.100.128/26")})
    with pytest.raises(LabError, match="1 rails, the fabric has 2"):
        node_recipe("lab", cluster.model_copy(update={"virtual_fabric": two}), "lab-1", "node:1", "key", ())


def test_real_machines_are_refused(cluster: Cluster) -> None:
    with pytest.raises(LabError, match="real machines"):
        node_recipe("lab", cluster.model_copy(update={"virtual_fabric": None}), "lab-1", "node:1", "key", ())


def test_a_login_uses_nothing_but_what_the_cluster_says(cluster: Cluster) -> None:
    command = ssh_command(cluster, "lab-1")
    assert command[:3] == ["ssh", "-F", "none"]
    assert f"KnownHostsCommand=/bin/echo 198.51.100.11 {cluster.nodes['lab-1'].host_key}" in command
    assert "StrictHostKeyChecking=yes" in command
    assert command[-1] == "root@198.51.100.11"


def test_the_image_store_is_a_setting_of_the_nodes_engine(recipe: NodeRecipe) -> None:
    assert replace(recipe, image_store="containerd").identity != recipe.identity
    for store, wanted in (("classic", b"false"), ("containerd", b"true")):
        with tarfile.open(fileobj=io.BytesIO(node_files(replace(recipe, image_store=store)))) as tar:
            settings = tar.extractfile("etc/docker/daemon.json")
            assert settings is not None
            assert wanted in settings.read()
    with pytest.raises(LabError, match=r"20\.10 has no containerd image store"):
        NodeSystem("bookworm", "containerd")
