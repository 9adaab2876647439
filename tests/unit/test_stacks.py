"""Every stack of this project: it plans, its cache has the measured size, and its flags are those of its source."""

import ipaddress
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from spec.catalog import Catalog, read_stack
from spec.deployment import DeploymentConfig
from spec.errors import SpecificationError
from spec.plan import plan_release
from spec.release import RankPlan, Release
from spec.yaml_files import parse

PROJECT = Path(__file__).parents[2]
STACKS = sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in PROJECT.glob("Pulumi.*.yaml"))
LAB = ["lab", "lab-pool", "lab-tp1", "lab-tp4"]
LEFT_TO_THE_OPERATOR = {
    *("weights-have-no-conditions", "weights-may-earn-money"),  # who serves answers for the terms
    *("flags-are-of-the-images-version", "flags-can-be-checked"),  # nobody here has started these images
}
"""Warnings that no stack of this project acknowledges for whoever copies it."""
DOCUMENTATION = [ipaddress.ip_network(text) for text in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")]


def planned(stack: str) -> Release:
    return plan_release(stack, read_stack(PROJECT, stack), Catalog(PROJECT / "catalog"))


def all_ranks(stack: str) -> list[RankPlan]:
    return [rank for group in planned(stack).groups for rank in group.ranks]


def flags_of(words: Sequence[str]) -> dict[str, str]:
    """Returns each flag with its value, `yes` for none, and what stands before the first as the program."""
    found: dict[str, list[str]] = {"(program)": []}
    name = "(program)"
    for word in words:
        if word.startswith("--"):
            name, _, inline = word.partition("=")
            found[name] = [inline] if inline else []
        else:
            found[name].append(word)
    return {name: " ".join(values) or "yes" for name, values in found.items()}


def test_these_are_all_stacks() -> None:
    assert set(STACKS) == {
        *("glm53", "glm53-tp4", "glm53-tp4-dual-rail", "glm53-dflash2", "glm53-tp2"),
        *("glm53-ethernet", "glm53-ethernet-offline", "glm53-h200", "glm53-h200-single"),
        *("qwen-tp2", "qwen-tp4", "qwen-mmap", "qwen-pool", "qwen-sglang"),
        *LAB,
    }


@pytest.mark.parametrize("stack", STACKS)
def test_every_stack_plans(stack: str) -> None:
    release = planned(stack)
    assert all(group.ranks for group in release.groups)
    assert len({rank.container for rank in all_ranks(stack)}) == len(all_ranks(stack))
    assert {finding.rule for finding in release.findings if finding.acknowledged is None} <= LEFT_TO_THE_OPERATOR


@pytest.mark.parametrize("stack", STACKS)
def test_only_the_lab_has_a_salt_since_its_passphrase_is_empty(stack: str) -> None:
    content = yaml.safe_load((PROJECT / f"Pulumi.{stack}.yaml").read_text())
    assert ("encryptionsalt" in content) is (stack in LAB)
    assert set(content) <= {"config", "encryptionsalt"}


@pytest.mark.parametrize("stack", [stack for stack in STACKS if stack not in LAB])
def test_a_stack_says_first_what_it_is(stack: str) -> None:
    assert (PROJECT / f"Pulumi.{stack}.yaml").read_text().startswith("# ")


@pytest.mark.parametrize(
    ("stack", "tokens"),
    [
        ("glm53-tp4", 2_246_948),  # seed 000
        ("glm53-tp4-dual-rail", 2_246_948),  # a rail more is no memory less
        ("glm53-tp2", 507_041),  # seed 000
        ("glm53", 2_632_595),  # seed 002
    ],
)
def test_the_cache_has_the_size_that_the_source_measured(stack: str, tokens: int) -> None:
    (group,) = planned(stack).groups
    assert group.kv_cache is not None
    assert group.kv_cache.tokens == tokens


@pytest.mark.parametrize(
    ("stack", "measured", "tolerance"),
    [
        ("qwen-tp4", 2_643_285, 0.05),  # seed 000, at a context of 131072 as its figure shows
        ("qwen-mmap", 296_636, 0.05),  # seed 000, bfloat16 at another utilization
    ],
)
def test_the_profiled_cache_is_near_what_the_source_measured(stack: str, measured: int, tolerance: float) -> None:
    (group,) = planned(stack).groups
    assert group.kv_cache is not None
    assert group.kv_cache.tokens == pytest.approx(measured, rel=tolerance)


@pytest.mark.parametrize("stack", STACKS)
def test_every_cache_holds_one_longest_request(stack: str) -> None:
    for group in planned(stack).groups:
        assert group.kv_cache is None or group.kv_cache.starts


@pytest.mark.parametrize("stack", [stack for stack in STACKS if stack not in ("qwen-sglang", "glm53-ethernet-offline")])
def test_every_command_line_passes_the_flag_table(stack: str, catalog: Catalog) -> None:
    config = parse(DeploymentConfig, read_stack(PROJECT, stack), "stack")
    version = catalog.image(config.image).flag_table
    assert version is not None
    table = catalog.flag_table(version, "image")
    for rank in all_ranks(stack):
        words = rank.command
        if "serve" in words:
            assert table.check(words[words.index("serve") + 2 :], rendered=True) == []


# The pool


def test_the_pool_is_three_pairs_each_inside_one_switch(catalog: Catalog) -> None:
    release = planned("qwen-pool")
    switches = [{release.nodes[rank.node].switch for rank in group.ranks} for group in release.groups]
    assert switches == [{"switch-a"}, {"switch-a"}, {"switch-b"}]
    assert all(len(group.ranks) == 2 for group in release.groups)
    assert set(release.nodes) == set(catalog.cluster("gb10-six").nodes)
    assert len({group.ranks[0].environment["VLLM_HOST_IP"] for group in release.groups}) == 3
    assert len({group.hash for group in release.groups}) == 3


def test_a_change_to_one_pair_of_the_pool_leaves_the_others_alone(catalog: Catalog) -> None:
    config = read_stack(PROJECT, "qwen-pool")
    before = plan_release("qwen-pool", config, catalog)
    config["groups"]["pair-c"] = ["gb10-6", "gb10-5"]
    after = plan_release("qwen-pool", config, catalog)
    assert [one.hash == other.hash for one, other in zip(before.groups, after.groups, strict=True)] == [
        True,
        True,
        False,
    ]


def test_a_node_that_is_cabled_at_another_port_has_names_of_its_own() -> None:
    named = {rank.node: rank.environment["NCCL_IB_HCA"] for rank in all_ranks("glm53")}
    assert named["gb10-3"] == "=rocep1s0f1:1,roceP2p1s0f1:1"
    assert named["gb10-4"] == "=rocep1s0f0:1,roceP2p1s0f0:1"


# The clusters


@pytest.mark.parametrize("cluster", ["gb10-six", "gb10-four-ethernet", "h200", "h200-single"])
def test_an_example_cluster_cannot_be_reached(cluster: str, catalog: Catalog) -> None:
    nodes = catalog.cluster(cluster).nodes.values()
    addresses = [address for node in nodes for address in (node.management_address, *(r.address for r in node.rails))]
    assert len(set(addresses)) == len(addresses)
    assert all(any(ipaddress.ip_address(address) in network for network in DOCUMENTATION) for address in addresses)
    assert len({node.host_key for node in nodes}) == len(nodes)


def test_management_and_rails_are_different_networks(catalog: Catalog) -> None:
    for node in catalog.cluster("gb10-six").nodes.values():
        networks = {
            ipaddress.ip_network(f"{address}/25", strict=False)
            for address in (node.management_address, *(r.address for r in node.rails))
        }
        assert len(networks) == 3


# What docs/sources.md says


def _tables() -> list[tuple[str, str, list[tuple[str, str, str, str]]]]:
    """Returns the tables of docs/sources.md: section, heading of the first column, rows."""
    found: list[tuple[str, str, list[tuple[str, str, str, str]]]] = []
    section = ""
    for line in (PROJECT / "docs" / "sources.md").read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| ") and section in STACKS:
            first, source, ours, why = (cell.strip() for cell in line.strip("|").split("|"))
            if source == "source":
                found.append((section, first, []))
            else:
                found[-1][2].append((first.strip("`"), source.replace("`", ""), ours.replace("`", ""), why))
    return found


def _joined(values: Iterable[str | None]) -> str:
    shown = [value or "-" for value in values]
    return shown[0] if len(set(shown)) == 1 else " / ".join(shown)


def _rendered(stack: str, heading: str) -> dict[str, str]:
    """Returns what the ranks of a stack have of the kind that a table is about, by name."""
    ranks = all_ranks(stack)
    if heading == "variable":
        each = [rank.environment for rank in ranks]
        shared = Catalog(PROJECT / "catalog").image(read_stack(PROJECT, stack)["image"]).environment
        names = [name for own in each for name in own if name not in shared]
    else:
        if heading == "flag of `ray start`":
            first = ranks[0].supervision.before[0]
            each = [flags_of(words) for words in (first, *(rank.command for rank in ranks[1:]))]
        elif heading == "flag of `vllm serve`, head":
            each = [flags_of(ranks[0].command)]
        else:
            each = [flags_of(rank.command) for rank in ranks]
        names = [name for own in each for name in own if heading != "flag of `ray start`" or name != "(program)"]
    return {name: _joined(own.get(name) for own in each) for name in dict.fromkeys(names)}


@pytest.mark.parametrize(
    ("stack", "heading", "rows"), _tables(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_comparison_with_the_source_is_that_of_the_plan(
    stack: str, heading: str, rows: list[tuple[str, str, str, str]]
) -> None:
    ours = {name: own for name, _, own, _ in rows}
    assert {name: own for name, own in ours.items() if own != "-"} == _rendered(stack, heading)
    for name, source, own, why in rows:
        assert (source == own) is (why == ""), f"{name}: a difference has a reason, and only a difference"


def test_the_five_stacks_are_compared() -> None:
    assert {section for section, _, _ in _tables()} == {
        *("glm53-tp4", "qwen-tp4", "qwen-pool", "glm53-ethernet", "glm53-ethernet-offline", "glm53")
    }


# The stacks that docs/sources.md only names: the head's command as their source has it, and what ours has otherwise.
# Values that any deployment has of its own (paths, addresses, ports, names) are not compared.

OWN = {
    "(program)",
    "--served-model-name",
    "--master-addr",
    "--master-port",
    "--port",
    "--dist-init-addr",
    "--model-path",
}
FIXED: dict[str, str | None] = {"--pipeline-parallel-size": "1"}  # the default, written out
GLM_PARSERS: dict[str, str | None] = {
    "--enable-auto-tool-choice": "yes",
    "--reasoning-parser": "glm45",
    "--tool-call-parser": "glm47",
}
QUESTIONABLE: dict[str, str | None] = {"--trust-remote-code": None, "--default-chat-template-kwargs": None}

SEED_000_GLM = """
  vllm serve MODEL --tensor-parallel-size 4 --pipeline-parallel-size 1 --nnodes 4 --node-rank 0
    --distributed-executor-backend mp --speculative-config '{"method":"mtp","num_speculative_tokens":4}'
    --max-model-len 262144 --max-num-seqs 32 --enable-chunked-prefill --gpu-memory-utilization 0.65
    --kv-cache-dtype fp8_e4m3 --enforce-eager --host 0.0.0.0 --moe-backend marlin --block-size 2304
    --kv-cache-memory-bytes 17179869184
"""
SOURCES: Mapping[str, tuple[str, Mapping[str, str | None]]] = {
    "glm53-tp4-dual-rail": (SEED_000_GLM, GLM_PARSERS),
    "glm53-dflash2": (
        SEED_000_GLM,
        GLM_PARSERS
        | {
            "--speculative-config": '{"method":"dflash","model":"/drafter","num_speculative_tokens":7}',
            "--max-num-batched-tokens": "8192",
        },
    ),
    "glm53-tp2": (  # tonyd2wild 2x, launch-glm53-vllm-tp2.sh
        """
        vllm MODEL --host 0.0.0.0 --trust-remote-code --tensor-parallel-size 2 --gpu-memory-utilization 0.85
          --max-model-len 262144 --max-num-seqs 6 --block-size 2304 --moe-backend marlin
          --speculative-config '{"method":"mtp","num_speculative_tokens":4}' --kv-cache-dtype fp8_e4m3
          --kv-cache-memory 4445787956 --enforce-eager --max-num-batched-tokens 8192
          --tool-call-parser glm47 --enable-auto-tool-choice --reasoning-parser glm45
          --default-chat-template-kwargs '{"enable_thinking": false}' --distributed-executor-backend mp
          --nnodes 2 --node-rank 0
        """,
        QUESTIONABLE | FIXED | {"--kv-cache-memory": None, "--kv-cache-memory-bytes": "4445787956"},
    ),
    "qwen-tp2": (  # x00byte, serve.sh
        """
        vllm serve /model --quantization modelopt_fp4 --tensor-parallel-size 2 --pipeline-parallel-size 1 --nnodes 2
          --node-rank 0 --distributed-executor-backend mp --enforce-eager
          --speculative-config '{"method":"mtp","num_speculative_tokens":4}' --max-model-len 262144 --max-num-seqs 8
          --max-num-batched-tokens 8192 --enable-chunked-prefill --enable-prefix-caching
          --gpu-memory-utilization 0.85 --tool-call-parser qwen3_coder --enable-auto-tool-choice
          --reasoning-parser qwen3 --host 0.0.0.0
        """,
        {"--gpu-memory-utilization": "0.7"},
    ),
    "qwen-mmap": (  # blazux, scripts/serve.sh
        """
        vllm serve MODEL --host 0.0.0.0 --load-format safetensors --max-model-len 262144 --max-num-seqs 8
          --gpu-memory-utilization 0.80 --enable-prefix-caching --enable-prompt-tokens-details
          --enable-chunked-prefill --max-num-batched-tokens 8192
          --compilation-config '{"cudagraph_mode":"PIECEWISE","splitting_ops":[]}' --no-enable-flashinfer-autotune
          --kv-cache-dtype auto --enable-auto-tool-choice --tool-call-parser qwen3_coder --reasoning-parser qwen3
          --speculative-config '{"method":"mtp","num_speculative_tokens":2}'
        """,
        FIXED
        | {
            "--gpu-memory-utilization": "0.74",
            "--kv-cache-dtype": "fp8_e4m3",
            "--compilation-config": None,
            "--enforce-eager": "yes",
            "--tensor-parallel-size": "1",
            "--distributed-executor-backend": "mp",
        },
    ),
    "qwen-sglang": (  # MiaAI-Lab, start.sh and .env.example of late August, native context
        """
        python3 -m sglang.launch_server --trust-remote-code --tp-size 2 --quantization modelopt_fp4
          --attention-backend flashinfer --page-size 64 --mamba-ssm-dtype bfloat16
          --mamba-radix-cache-strategy extra_buffer --mamba-track-interval 64 --mem-fraction-static 0.80
          --chunked-prefill-size 4096 --max-running-requests 28 --context-length 262144
          --speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1
          --speculative-num-draft-tokens 4 --reasoning-parser auto --tool-call-parser auto --enable-metrics
          --enable-cache-report --disable-prefill-cuda-graph --host 0.0.0.0 --kv-cache-dtype nvfp4
          --cuda-graph-bs-decode 1 2 3 4 5 6 7 8 10 12 14 16 20 24 28 --nnodes 2 --node-rank 0
        """,
        {
            "--trust-remote-code": None,
            "--pp-size": "1",
            "--mem-fraction-static": "0.66",
            "--max-running-requests": "8",
            "--cuda-graph-bs-decode": "1 2 3 4 5 6 7 8",
            "--kv-cache-dtype": None,
        },
    ),
}


@pytest.mark.parametrize("stack", SOURCES)
def test_the_flags_are_those_of_the_source(stack: str) -> None:
    text, otherwise = SOURCES[stack]
    expected = {**flags_of(shlex.split(text)), **otherwise}
    ours = flags_of(all_ranks(stack)[0].command)
    assert {name: value for name, value in ours.items() if name not in OWN} == {
        name: value for name, value in expected.items() if name not in OWN and value is not None
    }


def test_every_stack_with_a_source_is_compared() -> None:
    compared = {section for section, _, _ in _tables()} | set(SOURCES)
    # Seed 000 prints no flags for its H200 reference.
    assert compared == set(STACKS) - {*LAB, "glm53-h200", "glm53-h200-single"}


# New entries are YAML alone


def _written(folder: Path, name: str, data: Any) -> None:
    (folder / name).write_text(yaml.safe_dump(data))


def test_a_new_model_image_cluster_and_stack_need_no_code(tmp_path: Path) -> None:
    catalog = tmp_path / "catalog"
    shutil.copytree(PROJECT / "catalog", catalog)
    model = yaml.safe_load((catalog / "models" / "qwen38-flash-next-nvidia-nvfp4.yaml").read_text())
    model["served_name"] = "our-own"
    model["source"] = {"repository": "us/our-own", "revision": "0" * 40}
    model["checkpoint"]["size_bytes"] = 100 << 30
    _written(catalog, "models/our-own.yaml", model)
    _written(
        catalog,
        "images/released.yaml",
        {
            "registry": {"repository": "example.org/vllm", "digest": f"sha256:{'1' * 64}", "tag": "v0.33.0"},
            "version": "0.33.0",
            "flag_table": "0.33.0",
            "entrypoint": ["vllm"],
        },
    )
    key = Catalog(catalog).cluster("gb10-six").nodes["gb10-1"].host_key
    _written(
        catalog,
        "clusters/two.yaml",
        {
            "hardware": "gb10",
            "nodes": {
                name: {
                    "management_address": f"192.0.2.{number}",
                    "host_key": key,
                    "switch": "desk",
                    "rails": [{"address": f"203.0.113.{number}", "interface": "fabric0", "hca": "mlx5_0"}],
                }
                for number, name in enumerate(("left", "right"), start=1)
            },
        },
    )
    deployment = {
        "cluster": "two",
        "image": "released",
        "model": "our-own",
        "groups": {"main": ["left", "right"]},
        "fabric": {"kind": "roce"},
        "engine": {"max_model_len": 65536, "max_num_seqs": 8, "gpu_memory_utilization": 0.65, "enforce_eager": True},
    }
    _written(tmp_path, "Pulumi.ours.yaml", {"config": {"gb10-serving:deployment": deployment}})
    release = plan_release("ours", read_stack(tmp_path, "ours"), Catalog(catalog))
    assert release.image.base.pull == f"example.org/vllm@sha256:{'1' * 64}"
    assert release.weights[0].repository == "us/our-own"
    (group,) = release.groups
    assert [rank.node for rank in group.ranks] == ["left", "right"]
    assert group.ranks[1].environment["NCCL_IB_HCA"] == "=mlx5_0:1"
    assert group.served_name == "our-own"
    assert group.kv_cache is not None
    assert group.kv_cache.starts


def test_an_entry_that_is_missing_is_named_with_those_that_are_there(catalog: Catalog) -> None:
    config = read_stack(PROJECT, "glm53-tp4") | {"model": "glm53-flash-gguf"}
    with pytest.raises(SpecificationError, match=r"glm53-flash-gguf.yaml.*\n.*no such entry in models") as caught:
        plan_release("glm53-tp4", config, catalog)
    assert re.search(r"use one of: .*glm53-flash-redhat-nvfp4", str(caught.value))
