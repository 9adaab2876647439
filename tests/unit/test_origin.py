"""`--why` names the one place that decided, and what it was preferred to."""

from typing import Any

import pytest

from spec.catalog import Catalog
from spec.deployment import DeploymentConfig
from spec.origin import Origin, origins
from spec.plan import plan_release
from spec.situation import look_up
from spec.yaml_files import parse


def why(catalog: Catalog, config: dict[str, Any], key: str) -> list[Origin]:
    situation = look_up("lab", parse(DeploymentConfig, config, "Pulumi.lab.yaml"), catalog)
    return origins(situation, plan_release("lab", config, catalog), key)


@pytest.mark.parametrize(
    ("key", "value", "place"),
    [
        ("--max-model-len", "512", "Pulumi.lab.yaml: config/gb10-serving:deployment/engine/max_model_len"),
        ("--seed", "7", "Pulumi.lab.yaml: config/gb10-serving:deployment/engine/other/seed"),
        ("--enforce-eager", "(set)", "Pulumi.lab.yaml: config/gb10-serving:deployment/engine/enforce_eager"),
        ("--node-rank", "0", "the plan of the group"),
        ("HOME", "/tmp", "catalog/images/lab.yaml: environment/HOME"),
        ("VLLM_HOST_IP", "198.51.100.75", "the fabric, kind virtual, from catalog/clusters/lab.yaml"),
        ("engine/max_model_len", "512", "Pulumi.lab.yaml: config/gb10-serving:deployment/engine/max_model_len"),
        ("port", "8000", "the default (docs/stack-file.md)"),
        ("memory/floor_percent", "12", "the default (docs/stack-file.md)"),
    ],
)
def test_the_place_that_decided(catalog: Catalog, lab_config: dict[str, Any], key: str, value: str, place: str) -> None:
    lab_config["engine"]["other"] = {"seed": 7}
    first = why(catalog, lab_config, key)[0]
    assert (first.value, first.place) == (value, place)


def test_a_stack_beats_its_image_and_says_so(catalog: Catalog, lab_config: dict[str, Any]) -> None:
    lab_config["environment"] = {"OMP_NUM_THREADS": "2"}
    for origin in why(catalog, lab_config, "OMP_NUM_THREADS"):
        assert origin.value == "2"
        assert origin.place.startswith("Pulumi.lab.yaml")
        assert origin.instead_of == ("1 in catalog/images/lab.yaml: environment/OMP_NUM_THREADS",)


def test_a_reason_on_record_is_told(catalog: Catalog, lab_config: dict[str, Any]) -> None:
    assert "prefix" in why(catalog, lab_config, "NCCL_SOCKET_IFNAME")[0].why


@pytest.mark.parametrize("key", ["--no-such-flag", "NO_SUCH_VARIABLE", "no/such/key", "engine/nothing"])
def test_a_key_that_nobody_sets_has_no_origin(catalog: Catalog, lab_config: dict[str, Any], key: str) -> None:
    assert why(catalog, lab_config, key) == []
