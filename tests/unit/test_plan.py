"""From a stack file to a Release: pure, complete, hashed."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec.base import canonical_json, content_hash
from spec.catalog import Catalog, read_stack
from spec.connection import connection_to
from spec.engine import Engine
from spec.errors import SpecificationError
from spec.plan import plan_release

PROJECT = Path(__file__).parents[2]
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize("stack", ["lab", "lab-tp1"])
def test_the_same_stack_gives_the_same_release(catalog: Catalog, stack: str) -> None:
    first = plan_release(stack, read_stack(PROJECT, stack), catalog)
    second = plan_release(stack, read_stack(PROJECT, stack), Catalog(PROJECT / "catalog"))
    assert canonical_json(first.model_dump(mode="json")) == canonical_json(second.model_dump(mode="json"))
    assert first.hash == second.hash


def test_the_command_line_of_each_rank(catalog: Catalog, lab_config: dict[str, Any]) -> None:
    head, worker = plan_release("lab", lab_config, catalog).groups[0].ranks
    shared = (
        "python3 -m vllm.entrypoints.cli.main serve /model --served-model-name lab --host 0.0.0.0 --port 8000 "
        "--tensor-parallel-size 2 --pipeline-parallel-size 1 --distributed-executor-backend mp "
        "--nnodes 2 --node-rank {} --master-addr 198.51.100.75 --master-port 29500 {}"
        "--max-model-len 512 --max-num-seqs 8 --kv-cache-memory-bytes 67108864 --enforce-eager"
    )
    assert " ".join(head.command) == shared.format(0, "")
    assert " ".join(worker.command) == shared.format(1, "--headless ")
    assert worker.environment["VLLM_HOST_IP"] == "198.51.100.76"
    assert worker.environment["GLOO_SOCKET_IFNAME"] == "rail0"
    assert worker.container == "gb10-lab-main-rank1"


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"stop_grace_seconds": 31}, True),
        ({"readiness": {"start_timeout_seconds": 5}}, True),
        ({"port": 8001}, False),
        ({"engine": {"max_model_len": 513, "max_num_seqs": 4}}, False),
        ({"groups": {"main": ["lab-2", "lab-1"]}}, False),
    ],
)
def test_only_what_ranks_are_made_from_makes_another_generation(
    catalog: Catalog, lab_config: dict[str, Any], change: dict[str, Any], same: bool
) -> None:
    before = plan_release("lab", lab_config, catalog)
    after = plan_release("lab", lab_config | change, catalog)
    assert (before.groups[0].hash == after.groups[0].hash) is same
    assert before.hash != after.hash


def test_a_node_that_the_cluster_does_not_have_is_refused(catalog: Catalog, lab_config: dict[str, Any]) -> None:
    lab_config["groups"] = {"main": ["lab-1", "lab-9"]}
    with pytest.raises(
        SpecificationError, match=r"groups/main: 'lab-9'\n.*no node of this name\n.*use one of: lab-1, lab-2"
    ):
        plan_release("lab", lab_config, catalog)


def test_tensor_parallelism_must_divide_the_heads(catalog: Catalog, lab_config: dict[str, Any]) -> None:
    lab_config["groups"] = {"main": ["lab-1", "lab-2", "lab-3"]}
    with pytest.raises(SpecificationError, match=r"4 = 1 x 3 \+ 1") as caught:
        plan_release("lab", lab_config, catalog)
    assert "use a number of nodes that divides it: 1, 2, 4" in str(caught.value)


@given(PLAIN)
def test_canonical_json_does_not_depend_on_the_order_of_keys(value: Any) -> None:
    def reversed_keys(inner: Any) -> Any:
        if isinstance(inner, dict):
            return {key: reversed_keys(inner[key]) for key in reversed(inner)}
        return [reversed_keys(item) for item in inner] if isinstance(inner, list) else inner

    assert content_hash(value) == content_hash(reversed_keys(value))


def test_canonical_json_refuses_what_is_no_number() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(float("nan"))


@given(
    st.dictionaries(
        st.from_regex(r"\A[a-z][a-z_]{3,20}\Z"), st.booleans() | st.integers() | st.from_regex(r"\A[a-z]+\Z")
    )
)
def test_every_argument_is_written_once_and_in_full(other: dict[str, Any]) -> None:
    try:
        words = Engine(max_model_len=8, max_num_seqs=1, other=other).arguments()
    except ValueError:
        return
    flags = [word for word in words if word.startswith("--")]
    assert len(flags) == len(set(flags))
    shown = {flag[2:].replace("-", "_") for flag in flags}
    assert shown == {"max_model_len", "max_num_seqs"} | {name for name, value in other.items() if value is not False}


def test_a_connection_trusts_only_the_pinned_host_key(catalog: Catalog) -> None:
    connection = connection_to(catalog.cluster("lab"), "lab-1")
    options = connection.ssh_options()
    assert "UserKnownHostsFile=/dev/null" in options
    assert "StrictHostKeyChecking=yes" in options
    assert f"KnownHostsCommand=/bin/echo %H {connection.host_key}" in options
    assert options.count("-o") * 2 == len(options)
