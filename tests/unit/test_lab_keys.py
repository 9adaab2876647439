import stat
from pathlib import Path

import pytest
import yaml

from lab.errors import LabError
from lab.keys import ensure_login_key, host_key, public_line, require_derived_host_key
from spec.cluster import Cluster

_LAB = Path(__file__).parents[2] / "catalog/clusters/lab.yaml"


@pytest.fixture
def cluster() -> Cluster:
    return Cluster.model_validate(yaml.safe_load(_LAB.read_text()))


def _with_identity_file(cluster: Cluster, path: Path | None) -> Cluster:
    text = None if path is None else str(path)
    return cluster.model_copy(update={"ssh": cluster.ssh.model_copy(update={"identity_file": text})})


def test_the_catalogue_pins_the_keys_that_follow_from_the_names(cluster: Cluster) -> None:
    for name, node in cluster.nodes.items():
        assert public_line(host_key(name)) == node.host_key


def test_another_host_key_is_refused_with_the_right_one(cluster: Cluster) -> None:
    swapped = {**cluster.nodes, "lab-1": cluster.nodes["lab-2"]}
    with pytest.raises(LabError, match="host_key: " + cluster.nodes["lab-1"].host_key.replace("+", r"\+")):
        require_derived_host_key(cluster.model_copy(update={"nodes": swapped}), "lab-1")


def test_the_login_key_is_private_and_made_once(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "state" / "id_ed25519"
    made = ensure_login_key(_with_identity_file(cluster, path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ensure_login_key(_with_identity_file(cluster, path)) == made
    assert [entry.name for entry in path.parent.iterdir()] == ["id_ed25519"]


def test_a_file_that_is_no_key_is_left_alone(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "id_ed25519"
    path.write_text("my diary")
    with pytest.raises(LabError, match="Move the file away"):
        ensure_login_key(_with_identity_file(cluster, path))
    assert path.read_text() == "my diary"


def test_a_cluster_without_login_key_is_refused(cluster: Cluster) -> None:
    with pytest.raises(LabError, match="identity_file"):
        ensure_login_key(_with_identity_file(cluster, None))
