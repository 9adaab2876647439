"""Files that are wrong are refused with file, key, value, rule and a way out."""

from pathlib import Path
from typing import Any

import pytest

from spec.catalog import Catalog, read_stack, refuse_unclean_file
from spec.cluster import Cluster
from spec.deployment import DeploymentConfig
from spec.errors import SpecificationError
from spec.yaml_files import parse, read_yaml


def write(folder: Path, content: bytes) -> Path:
    path = folder / "Pulumi.x.yaml"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xef\xbb\xbfconfig: {}\n", "byte-order mark"),
        (b"config:\n  a: 1\r\n", "line 2 ends with a carriage return"),
        (b"config: {a: 1, a: 2}\n", "the key 'a' stands twice"),
        (b"config: [\n", "not readable as YAML"),
        (b"\xff\xfe", "not readable as YAML"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(SpecificationError, match=words) as caught:
        read_yaml(write(tmp_path, content), "Pulumi.x.yaml")
    assert str(caught.value).startswith("Pulumi.x.yaml: ")
    assert "Way out: " in str(caught.value)


def test_a_stack_file_without_a_deployment_says_which_key_is_missing(tmp_path: Path) -> None:
    write(tmp_path, b"config: {}\n")
    with pytest.raises(SpecificationError, match="config/gb10-serving:deployment"):
        read_stack(tmp_path, "x")


def test_a_program_refuses_the_same_stack_files(tmp_path: Path) -> None:
    refuse_unclean_file(tmp_path, "x")
    write(tmp_path, b"config: {'gb10-serving:deployment': {port: 1, port: 2}}\n")
    with pytest.raises(SpecificationError, match="the key 'port' stands twice"):
        refuse_unclean_file(tmp_path, "x")


def test_an_unknown_entry_names_the_known_ones(catalog: Catalog) -> None:
    with pytest.raises(
        SpecificationError, match=r"catalog/clusters/nowhere.yaml.*\n.*no such entry.*\n.*use one of: .*lab"
    ):
        catalog.cluster("nowhere")


def changed(config: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    *path, last = key.split("/")
    inner = config
    for name in path:
        inner = inner[name]
    inner[last] = value
    return config


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("modle", "x", "this key is not known here"),
        ("engine/max_model_len", 0, "greater than 0"),
        ("engine/max_model_len", "many", "valid integer"),
        ("engine/other", {"max_loras": ""}, "max_loras is empty, which is not the same as absent"),
        ("engine/kv_cache_memory_bytes", "16 GB", "a number with KiB, MiB, GiB or TiB"),
        ("engine/kv_cache_memory_bytes", "0.3 KiB", "307.2 bytes, which is not a whole number"),
        ("engine/other", {"max_num_seqs": 2}, "max_num_seqs has a key of its own"),
        ("groups", {"a": ["lab-1"], "b": ["lab-1"]}, "node lab-1 is in a and again in b"),
        ("groups", {"a": []}, "group a has no node"),
        ("groups", {}, "at least 1 item"),
        ("port", 80, "greater than or equal to 1024"),
        ("cluster", "Not A Name", "String should match pattern"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(lab_config: dict[str, Any], key: str, value: Any, words: str) -> None:
    with pytest.raises(SpecificationError) as caught:
        parse(DeploymentConfig, changed(lab_config, key, value), "Pulumi.lab.yaml", "config/gb10-serving:deployment")
    text = str(caught.value)
    assert words in text
    assert f"Pulumi.lab.yaml: config/gb10-serving:deployment/{key.split('/')[0]}" in text


def test_every_problem_is_listed_at_once(lab_config: dict[str, Any]) -> None:
    del lab_config["model"]
    lab_config["port"] = 1
    with pytest.raises(SpecificationError) as caught:
        parse(DeploymentConfig, lab_config, "Pulumi.lab.yaml")
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.3.4", "0.0.0.0", "224.0.0.1", "::1"])
def test_an_address_that_other_nodes_cannot_reach_is_refused(catalog: Catalog, address: str) -> None:
    data = catalog.cluster("lab").model_dump(mode="json")
    data["nodes"]["lab-1"]["rails"][0]["address"] = address
    with pytest.raises(SpecificationError, match="other nodes cannot reach it"):
        parse(Cluster, data, "catalog/clusters/lab.yaml")


def test_two_nodes_cannot_share_an_address(catalog: Catalog) -> None:
    data = catalog.cluster("lab").model_dump(mode="json")
    data["nodes"]["lab-2"]["rails"][0]["address"] = data["nodes"]["lab-1"]["management_address"]
    with pytest.raises(SpecificationError, match=r"nodes lab-1 and lab-2 both have the address 198\.51\.100\.11"):
        parse(Cluster, data, "catalog/clusters/lab.yaml")
