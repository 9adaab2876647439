"""Every rule speaks where it must, with its arithmetic and a way out, and is silent where the sources ran."""

import copy
import functools
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from lab.keys import host_key, public_line
from spec.catalog import Catalog
from spec.cluster import Cluster
from spec.deployment import DeploymentConfig
from spec.errors import SpecificationError
from spec.flags import FlagTable
from spec.plan import plan_release
from spec.rules import FIRST, RULES, Rule
from spec.yaml_files import parse

PROJECT = Path(__file__).parents[2]
EVERY_RULE: dict[str, Rule] = {rule.id: rule for rule in (*FIRST, *RULES)}
REMOVE = object()
"""As a change: the key is taken away."""


def node(number: int, switch: str, rails: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "management_address": f"192.0.2.{number}",
        "host_key": public_line(host_key(f"n{number}")),
        "switch": switch,
        "rails": rails,
    }


def rails(
    number: int, networks: tuple[str, ...] = ("198.51.100.", "203.0.113."), rdma: bool = True
) -> list[dict[str, Any]]:
    return [
        {
            "address": f"{network}{number}",
            "interface": f"enp{position}s0f0np0",
            **({"hca": f"rocep{position}s0f0"} if rdma else {}),
        }
        for position, network in enumerate(networks)
    ]


def cluster(nodes: int = 8, on_the_first_switch: int = 4, hardware: str = "gb10", **more: Any) -> dict[str, Any]:
    return {
        "hardware": hardware,
        "nodes": {
            f"n{number}": node(number, "a" if number <= on_the_first_switch else "b", rails(number))
            for number in range(1, nodes + 1)
        },
        **more,
    }


def chain(**more: Any) -> dict[str, Any]:
    return {"chain": "arm64", "version": "0.32.0", "flag_table": "0.32.0", "entrypoint": ["vllm"]} | more


def published(**more: Any) -> dict[str, Any]:
    origin = {"repository": "vllm/vllm-openai", "tag": "v0.32.0", "digest": "sha256:" + "2" * 64}
    return {"registry": origin, "version": "0.32.0", "flag_table": "0.32.0", "entrypoint": ["vllm"]} | more


CHAINS = {
    "arm64": {
        "purpose": "A chain on an image for the nodes of these tests.",
        "base": {"repository": "vllm/vllm-openai", "tag": "v0.32.0-arm64", "digest": "sha256:" + "1" * 64},
        "packages_folder": "/usr/lib/python3/dist-packages",
        "versions": {"torch": "2.12.0"},
        "steps": ["p1"],
    },
    "vllm-0.31": {
        "purpose": "A chain on a release of vLLM.",
        "base": {"repository": "vllm/vllm-openai", "tag": "v0.31.0", "digest": "sha256:" + "3" * 64},
        "packages_folder": "/usr/lib/python3/dist-packages",
        "versions": {"vllm": "0.31.0"},
        "steps": ["p1"],
    },
    "debian": {
        "purpose": "A chain on plain Debian.",
        "debootstrap": {"suite": "bookworm", "packages": ["python3"]},
        "packages_folder": "/usr/lib/python3/dist-packages",
        "versions": {"vllm": "0.32.0+cpu"},
        "steps": ["p1"],
    },
}
STEP = {"purpose": "p", "source": "s", "asserts": [{"file": "a.py", "contains": "a"}]}
CLUSTERS = {
    "six": cluster(6),
    "eight": cluster(8, on_the_first_switch=8),
    "few-files": cluster(6, limits={"open_files": 1024}),
    "locked": cluster(6, limits={"locked_memory_bytes": 8 << 20}),
    "ssh-8000": cluster(6, ssh={"port": 8000}),
    "no-rdma": cluster(6) | {"nodes": {f"n{n}": node(n, "a", rails(n, rdma=False)) for n in range(1, 5)}},
    "one-rail": cluster(6) | {"nodes": {f"n{n}": node(n, "a", rails(n)[:1]) for n in range(1, 5)}},
    # The rails of node 2 are in the other order than those of the others.
    "swapped": cluster(6)
    | {
        "nodes": {
            f"n{n}": node(n, "a", rails(n) if n != 2 else rails(n, ("203.0.113.", "198.51.100."))) for n in range(1, 5)
        }
    },
    "h200": cluster(2, hardware="h200"),
    "virtual": cluster(4, hardware="virtual"),
}
HARDWARE = {
    "gb10": {
        "gpus": 1,
        "memory_bytes": 130663642562,
        "unified": True,
        "platform": "linux/arm64",
        "compute_capability": "12.1",
    },
    "h200": {
        "gpus": 4,
        "memory_bytes": 150754820096,
        "unified": False,
        "platform": "linux/amd64",
        "compute_capability": "9.0",
    },
    "virtual": {"gpus": 0, "memory_bytes": 6 << 30, "unified": True, "platform": None},
}
DAY_ZERO_GLM = "0.1.dev20051+g487ecf187"
DAY_ZERO_QWEN = "0.1.dev20073+g8e685d198"
IMAGES = {
    "patched": chain(environment={"MAX_JOBS": "2"}),
    "stock": published(),
    "day-zero-glm": chain(version=DAY_ZERO_GLM, drafter_placement="shared-slots"),
    "day-zero-qwen": chain(version=DAY_ZERO_QWEN, maps_ngram_table=True),
    "stock-day-zero-qwen": published(version=DAY_ZERO_QWEN),
    "nearest-table": chain(flags_are_of_another_version=True),
    "without-table": chain(flag_table=None),
    "pinned-gid": chain(environment={"NCCL_IB_GID_INDEX": "3"}),
    "serves-twice": chain(entrypoint=["vllm", "serve"]),
    "x86": published() | {"registry": published()["registry"] | {"tag": "glm53-flash-x86_64-cu130"}},
    "debian": chain(chain="debian", entrypoint=["python3", "-m", "vllm.entrypoints.cli.main"]),
    "other-than-its-chain": chain(chain="vllm-0.31"),
    "sglang": chain(
        engine="sglang", version="0.5.9", flag_table=None, entrypoint=["python3", "-m", "sglang.launch_server"]
    ),
}

GLM: dict[str, Any] = {
    "cluster": "six",
    "image": "patched",
    "model": "glm53-flash-redhat-nvfp4",
    "groups": {"main": ["n1", "n2", "n3", "n4"]},
    "fabric": {"kind": "roce", "rails": [0, 1]},
    "speculative": {"method": "mtp", "draft_tokens": 4},
    "engine": {
        "max_model_len": 262144,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 8192,
        "kv_cache_memory_bytes": "16 GiB",
        "kv_cache_dtype": "fp8_e4m3",
        "block_size": 2304,
        "moe_backend": "marlin",
        "enforce_eager": True,
        "other": {"sparse_indexer_topk_backend": "per_row", "long_prefill_token_threshold": 4608},
    },
}
PROFILED: dict[str, Any] = GLM | {
    "model": "glm53-flash-libertai-nvfp4",
    "engine": {k: v for k, v in GLM["engine"].items() if k != "kv_cache_memory_bytes"}
    | {"gpu_memory_utilization": 0.65},
}
DFLASH: dict[str, Any] = GLM | {
    "speculative": {
        "method": "dflash",
        "draft_tokens": 7,
        "drafter": "glm53-flash-dflash2",
        "attention_backend": "FLASH_ATTN",
    }
}
QWEN: dict[str, Any] = {
    "cluster": "six",
    "image": "patched",
    "model": "qwen38-flash-next-radixark-nvfp4",
    "groups": {"main": ["n1", "n2", "n3", "n4"]},
    "fabric": {"kind": "roce", "rails": [0, 1]},
    "speculative": {"method": "mtp", "draft_tokens": 4},
    "engine": {
        "max_model_len": 262144,
        "max_num_seqs": 32,
        "gpu_memory_utilization": 0.65,
        "enable_expert_parallel": True,
        "enforce_eager": True,
    },
}
POOL: dict[str, Any] = QWEN | {"groups": {"a": ["n1", "n2"], "b": ["n3", "n4"], "c": ["n5", "n6"]}}
ONE_NODE: dict[str, Any] = QWEN | {
    "image": "day-zero-qwen",
    "groups": {"main": ["n1"]},
    "fabric": {"kind": "ethernet"},
    "engine": {
        "max_model_len": 262144,
        "max_num_seqs": 8,
        "gpu_memory_utilization": 0.74,
        "kv_cache_dtype": "fp8_e4m3",
        "enforce_eager": True,
    },
}
GEMMA: dict[str, Any] = {
    "cluster": "six",
    "image": "patched",
    "model": "gemma4-26b-a4b-nvfp4",
    "groups": {"main": ["n1"]},
    "fabric": {"kind": "ethernet"},
    "engine": {
        "max_model_len": 32768,
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.5,
        "enforce_eager": True,
    },
}
H200: dict[str, Any] = {
    "cluster": "h200",
    "image": "stock",
    "model": "glm53-flash-fp8",
    "groups": {"main": ["n1"]},
    "fabric": {"kind": "nvlink"},
    "memory": {"required_bytes": "64 GiB"},
    "engine": {"max_model_len": 131072, "max_num_seqs": 64, "gpu_memory_utilization": 0.9},
}
LAB: dict[str, Any] = {
    "cluster": "virtual",
    "image": "debian",
    "model": "lab",
    "groups": {"main": ["n1", "n2"]},
    "fabric": {"kind": "virtual"},
    "memory": {"required_bytes": "3 GiB"},
    "engine": {"max_model_len": 512, "max_num_seqs": 8, "kv_cache_memory_bytes": "64 MiB", "enforce_eager": True},
}
SGLANG: dict[str, Any] = {
    "cluster": "six",
    "image": "sglang",
    "model": "qwen38-flash-next-radixark-nvfp4",
    "groups": {"main": ["n1", "n2"]},
    "fabric": {"kind": "roce"},
    "executor": "sglang",
    "memory": {"required_bytes": "88 GiB"},
    "engine": {"max_model_len": 262144, "other": {"mem_fraction_static": 0.66, "max_running_requests": 8}},
}
RAY: dict[str, Any] = GLM | {"executor": "ray"}
JOB: dict[str, Any] = PROFILED | {"executor": "external_launcher", "job": "/opt/job.py", "speculative": None}

BASES = {
    "GLM": (GLM, set()),
    "PROFILED": (PROFILED, set()),
    "DFLASH": (DFLASH, {"weights-may-earn-money"}),
    "QWEN": (QWEN, {"weights-have-no-conditions"}),
    "POOL": (POOL, {"weights-have-no-conditions"}),
    "ONE_NODE": (ONE_NODE, {"weights-have-no-conditions", "memory-floor-is-kept-surely", "sparse-attention-takes-fp8"}),
    "GEMMA": (GEMMA, set()),
    "H200": (H200, set()),
    "LAB": (LAB, set()),
    "SGLANG": (SGLANG, {"flags-can-be-checked", "weights-have-no-conditions"}),
    "RAY": (RAY, set()),
    "JOB": (JOB, {"a-job-answers-nobody"}),
}
"""Deployments that pass, with the warnings that they cannot do without."""


class CachedCatalog(Catalog):
    """The catalogue of these tests, which reads a flag table once."""

    def flag_table(self, version: str, file: str) -> FlagTable:
        return read_once(self.folder, version, file)


@functools.cache
def read_once(folder: Path, version: str, file: str) -> FlagTable:
    return Catalog(folder).flag_table(version, file)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """The project's models and flag tables with clusters, hardware and images of these tests."""
    folder = tmp_path_factory.mktemp("rules") / "catalog"
    for kind in ("models", "flags", "routers"):
        shutil.copytree(PROJECT / "catalog" / kind, folder / kind)
    (folder / "models" / "odd-heads.yaml").write_text(yaml.safe_dump(odd_heads()))
    for kind, entries in (("clusters", CLUSTERS), ("hardware", HARDWARE), ("images", IMAGES)):
        (folder / kind).mkdir()
        for name, entry in entries.items():
            (folder / kind / f"{name}.yaml").write_text(yaml.safe_dump(entry))
    for name, described in CHAINS.items():
        step = folder.parent / "patches" / name / "p1"
        step.mkdir(parents=True)
        (step / "step.yaml").write_text(yaml.safe_dump(STEP))
        (step.parent / "chain.yaml").write_text(yaml.safe_dump(described))
    return CachedCatalog(folder)


def odd_heads() -> dict[str, Any]:
    """A model whose attention heads divide by 3 and whose key-value heads do not."""
    lab = yaml.safe_load((PROJECT / "catalog" / "models" / "lab.yaml").read_text())
    lab["architecture"] |= {"attention_heads": 12, "key_value_heads": 4}
    return lab


def changed(config: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(config)
    for path, value in change.items():
        *above, last = path.split("/")
        inner = result
        for name in above:
            inner = inner.setdefault(name, {})
        if value is REMOVE:
            inner.pop(last, None)
        else:
            inner[last] = value
    return result


def findings(config: dict[str, Any], made: Catalog) -> dict[str, str]:
    """Returns what the rules say of a deployment: texts by rule, whether they refuse or warn."""
    texts: dict[str, str] = {}
    try:
        release = plan_release("x", config, made)
    except SpecificationError as error:
        for problem in error.problems:
            found = re.match(r"\[([a-z0-9-]+)\] ", problem.rule)
            assert found, f"no rule said this: {problem}"
            assert EVERY_RULE[found[1]].severity == "refuse"
            assert problem.way_out
            texts[found[1]] = texts.get(found[1], "") + f"{problem}\n"
        return texts
    for finding in release.findings:
        assert finding.severity == EVERY_RULE[finding.rule].severity == "warn"
        texts[finding.rule] = texts.get(finding.rule, "") + f"{finding.text}\n"
    return texts


class Case(NamedTuple):
    """A change to a deployment that passes, and what the rule then says."""

    rule: str
    base: str
    change: dict[str, Any]
    words: tuple[str, ...]


TP2 = {"groups": {"main": ["n1", "n2"]}}
TP3 = {"groups": {"main": ["n1", "n2", "n3"]}}
SIX = {"groups": {"main": ["n1", "n2", "n3", "n4", "n5", "n6"]}, "across_switches": True}
CASES = (
    # groups
    Case("nodes-exist", "GLM", {"groups": {"main": ["n1", "n9"]}}, ("groups/main: 'n9'", "use one of: n1, n2, n3")),
    Case("ports-differ", "GLM", {"port": 29500}, ("`port` listens on 29500",)),
    Case("ports-differ", "RAY", {"port": 6379}, ("mentat's daemon listens on 6379",)),
    Case("ports-differ", "GLM", {"cluster": "ssh-8000"}, ("ssh of the cluster listens on 8000",)),
    Case(
        "groups-stay-inside-a-switch",
        "POOL",
        {"groups/b": ["n4", "n5"], "groups/c": ["n6", "n3"]},
        ("groups/b", "2 switches (a: n4; b: n5)", "groups/c", "across_switches: true"),
    ),
    Case(
        "router-runs-on-a-known-node",
        "POOL",
        {"router": {"node": "n9"}},
        ("router/node: 'n9'", "use one of: n1, n2, n3"),
    ),
    Case("router-ports-are-free", "POOL", {"router": {"node": "n1", "port": 8000}}, ("router/port", "`port` listens")),
    Case(
        "router-ports-are-free",
        "POOL",
        {"router": {"node": "n1", "health_port": 7717}},
        ("router/health_port", "`supervision/port` listens on 7717 of the same node"),
    ),
    Case(
        "stop-grace-fits-the-drain",
        "POOL",
        {"router": {"node": "n1", "drain_seconds": 400}, "stop_grace_seconds": 300},
        ("400 s to drain and 300 s to stop are 700 s", "at most 300"),
    ),
    Case("pool-has-more-than-one-member", "GLM", {"router": {"node": "n1"}}, ("there is 1 group",)),
    Case("router-has-somebody-to-ask", "JOB", {"router": {"node": "n1"}}, ("0 of them answer requests",)),
    Case("across-switches-is-needed", "POOL", {"across_switches": True}, ("(a, b, c) lies inside one switch",)),
    Case(
        "groups-are-of-one-size",
        "QWEN",
        {"groups": {"a": ["n1", "n2", "n3", "n4"], "b": ["n5", "n6"]}},
        ("a has 4, b has 2", "up to 4 / 2"),
    ),
    Case("single-node-needs-no-rdma", "GEMMA", {"fabric": {"kind": "roce"}}, ("1 node and so 0 peers",)),
    # fabric
    Case(
        "rails-have-what-the-fabric-needs", "GLM", {"cluster": "no-rdma"}, ("nodes/n1/rails/0", "add `hca` to the rail")
    ),
    Case("rails-have-what-the-fabric-needs", "GLM", {"cluster": "one-rail"}, ("uses rail 1, and the node has 1",)),
    Case(
        "fabric-choices-have-an-effect",
        "GEMMA",
        {"fabric/nccl": {"ib_timeout": 22}},
        ("fabric/nccl/ib_timeout: 22", "nothing reads ib_timeout on a fabric of kind ethernet"),
    ),
    Case("virtual-fabric-has-no-accelerators", "GLM", {"fabric": {"kind": "virtual"}}, ("has 1 accelerator(s)",)),
    Case("nvlink-stays-on-one-node", "GLM", {"fabric": {"kind": "nvlink"}}, ("4 nodes meet over 3 or more links",)),
    Case(
        "ranks-may-open-files",
        "GLM",
        {"cluster": "few-files"},
        ("limits/open_files: 1024", "1,024 / 3 = 341 for each peer"),
    ),
    Case("rdma-may-lock-memory", "GLM", {"cluster": "locked"}, ("8,388,608 bytes",)),
    Case("rails-lie-apart", "GLM", {"cluster": "swapped"}, ("which overlap", "in another order")),
    Case(
        "sockets-are-fast-enough",
        "GLM",
        {"fabric": {"kind": "ethernet"}},
        ("26.5 / 7.0 = 3.8", "rocep0s0f0 stay unused"),
    ),
    # environment
    Case(
        "environment-leaves-the-fabric-alone",
        "GLM",
        {"environment": {"NCCL_IB_GID_INDEX": "3"}},
        ("environment/NCCL_IB_GID_INDEX: '3'", "belongs to a node and a boot", "Way out: remove it"),
    ),
    Case(
        "environment-leaves-the-fabric-alone",
        "GLM",
        {"image": "pinned-gid"},
        ("catalog/images/pinned-gid.yaml: environment/NCCL_IB_GID_INDEX",),
    ),
    Case(
        "environment-leaves-the-fabric-alone",
        "GLM",
        {"environment": {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": ""}},
        ("GLOO_SOCKET_IFNAME belongs to the fabric", "OMP_NUM_THREADS is empty"),
    ),
    Case(
        "no-secret-is-in-the-open", "GLM", {"environment": {"HF_TOKEN": "hf_abc"}}, ("'(not shown)'", "docker inspect")
    ),
    Case("no-secret-is-in-the-open", "GLM", {"engine/other/hf_token": "hf_abc"}, ("a secret in argv",)),
    Case(
        "environment-is-not-overruled",
        "RAY",
        {"environment": {"RAY_ADDRESS": "x"}},
        ("the executor ray sets RAY_ADDRESS",),
    ),
    Case("environment-changes-something", "GLM", {"environment": {"MAX_JOBS": "2"}}, ("overrides nothing",)),
    # weights
    Case(
        "weights-are-of-this-deployment",
        "GLM",
        {"weights": {"other": {"kind": "controller"}}},
        ("weights/other", "no model or drafter of this name"),
    ),
    Case(
        "weights-are-of-this-deployment",
        "LAB",
        {"weights": {"lab": {"kind": "huggingface", "node": "v9"}}},
        ("weights/lab/kind", "names no repository", "weights/lab/node: 'v9'"),
    ),
    Case("ranks-stay-offline", "GLM", {"environment": {"HF_HUB_OFFLINE": "0"}}, ("told to stay offline",)),
    # executors
    Case("executor-starts-this-engine", "SGLANG", {"executor": "mp"}, ("holds sglang", "write `executor: sglang`")),
    Case("executor-starts-this-engine", "QWEN", {"executor": "sglang"}, ("holds vllm", "mp, ray, external_launcher")),
    Case("ray-has-accelerators", "LAB", {"executor": "ray"}, ("a node of virtual has 0",)),
    Case("ray-is-in-the-image", "RAY", {"image": "stock"}, ("0 steps of ours",)),
    Case("job-goes-with-its-launcher", "JOB", {"job": REMOVE}, ("runs a program of yours",)),
    Case("job-goes-with-its-launcher", "GLM", {"job": "/opt/job.py"}, ("the executor mp serves",)),
    Case(
        "launcher-has-one-accelerator-a-node",
        "H200",
        {"executor": "external_launcher", "job": "/opt/job.py"},
        ("4 accelerators, 3 of which get no process",),
    ),
    Case(
        "a-job-answers-nobody",
        "PROFILED",
        {"executor": "external_launcher", "job": "/opt/job.py"},
        ("nothing listens on port 8000: the 2 probes",),
    ),
    Case(
        "sglang-drafts-with-the-checkpoint",
        "SGLANG",
        {"speculative": {"method": "dflash", "draft_tokens": 7, "drafter": "glm53-flash-dflash2"}},
        ("SGLang 0.5.9 has no DFlash2",),
    ),
    Case("entrypoint-serves-once", "GLM", {"image": "serves-twice"}, ("`vllm serve serve ...`", "write [vllm]")),
    # image
    Case("image-knows-accelerators", "GLM", {"image": "debian"}, ("plain Debian", "has 1 accelerator(s)")),
    Case("image-is-of-the-platform", "GLM", {"image": "x86"}, ("linux/amd64", "nodes of six are linux/arm64")),
    Case(
        "image-has-the-chains-version",
        "GLM",
        {"image": "other-than-its-chain"},
        ("'0.32.0'", "patches/vllm-0.31/chain.yaml builds vllm 0.31.0"),
    ),
    Case("engine-knows-the-model", "GLM", {"image": "day-zero-qwen"}, ("its class came with 0.30.0",)),
    Case("ngram-table-is-read-right", "QWEN", {"image": "stock-day-zero-qwen"}, (DAY_ZERO_QWEN, "ple_layer.py")),
    # flags
    Case(
        "engine-flags-are-known",
        "PROFILED",
        {"engine/other/kv_cache_memory": 17179869184},
        (
            "engine/other/kv_cache_memory: '--kv-cache-memory 17179869184'",
            "an abbreviation",
            "write --kv-cache-memory-bytes",
        ),
    ),
    Case(
        "engine-flags-are-known",
        "GLM",
        {"engine/other/tensor_parallel_size": 4},
        ("--tensor-parallel-size 4", "belongs to the system", "list more or fewer nodes"),
    ),
    Case("engine-flags-are-known", "GLM", {"engine/other/enforce_eagre": True}, ("did you mean --enforce-eager?",)),
    Case("engine-flags-are-known", "GLM", {"engine/moe_backend": "marlyn"}, ("engine/moe_backend: ", "write marlin")),
    Case(
        "engine-flags-are-known",
        "GLM",
        {"image": "without-table", "engine/other/nnodes": 4},
        ("belongs to the system",),
    ),
    Case("engine-flags-are-known", "SGLANG", {"engine/other/tp_size": 2}, ("follows from the plan of the group",)),
    Case(
        "choices-stand-at-their-own-key",
        "GLM",
        {"engine/other/speculative_config": {"method": "mtp", "num_speculative_tokens": 2}},
        ("it sets what `speculative` sets",),
    ),
    Case(
        "choices-stand-at-their-own-key",
        "GLM",
        {"engine/other/no_enable_prefix_caching": True},
        ("it sets what `engine/enable_prefix_caching` sets",),
    ),
    Case("choices-stand-at-their-own-key", "SGLANG", {"engine/other/context_length": 9}, ("`engine/max_model_len`",)),
    Case(
        "sglang-has-these-flags",
        "SGLANG",
        {"engine/gpu_memory_utilization": 0.6},
        ("SGLang has no flag --gpu-memory-utilization", "write `mem_fraction_static` under `other`"),
    ),
    Case("flags-suit-headless-ranks", "GLM", {"engine/other/api_server_count": 2}, ("3 of 4 are headless",)),
    Case("automatic-tools-have-a-parser", "GLM", {"engine/other/enable_auto_tool_choice": True}, ("tool_call_parser",)),
    Case("tool-parser-is-in-use", "GLM", {"engine/other/tool_call_parser": "glm47"}, ("answers 400",)),
    Case(
        "overrides-reach-the-text-model",
        "GLM",
        {"engine/other/hf_overrides": {"rope_scaling": {"factor": 4}}},
        ("rope_scaling at the top level", "text_config"),
    ),
    Case(
        "flags-are-of-the-images-version",
        "GLM",
        {"image": "nearest-table"},
        ("of vLLM 0.32.0, and the image has 0.32.0",),
    ),
    Case("flags-can-be-checked", "GLM", {"image": "without-table"}, ("10 flag(s) were checked in form only",)),
    # parallel
    Case(
        "pipeline-divides-the-accelerators",
        "GLM",
        {"engine/pipeline_parallel_size": 3},
        ("3 stages do not divide 4 accelerators", "4 = 1 x 3 + 1", "use one of: 1, 2, 4"),
    ),
    Case(
        "pipeline-fits-the-architecture",
        "QWEN",
        {**SIX, "engine/pipeline_parallel_size": 3},
        (
            "6 accelerators of the group main are 2 (tensor parallel) x 3 (stages)",
            "hyper_connection_mixer",
            "several groups",
        ),
    ),
    Case("pipeline-is-proven", "GLM", {"engine/pipeline_parallel_size": 2}, ("no source ran 2 stages",)),
    Case(
        "tensor-parallel-divides-the-model",
        "QWEN",
        SIX,
        ("tensor parallel 6 does not divide the 16 linear key heads", "16 = 2 x 6 + 4", "that divides it: 1, 2, 4"),
    ),
    Case(
        "tensor-parallel-divides-the-model",
        "GLM",
        SIX,
        (
            "tensor parallel 6 does not divide the 64 attention heads",
            "64 = 10 x 6 + 4",
            "16 vision heads",
            "16 = 2 x 6 + 4",
        ),
    ),
    Case(
        "tensor-parallel-divides-the-model",
        "LAB",
        TP3,
        ("4 = 1 x 3 + 1", "use a number of nodes that divides it: 1, 2, 4"),
    ),
    Case(
        "key-value-heads-are-shared-evenly",
        "LAB",
        {**TP3, "model": "odd-heads"},
        ("4 key-value heads", "4 = 1 x 3 + 1", "3 = 0 x 4 + 3"),
    ),
    Case(
        "data-parallel-is-groups",
        "GLM",
        {"engine/other/data_parallel_size": 2},
        ("main: 4 x 1 = 4", "list several groups"),
    ),
    # experts
    Case("expert-parallel-has-experts", "LAB", {"engine/enable_expert_parallel": True}, ("lab has 0 routed experts",)),
    Case(
        "sliced-experts-keep-the-alignment",
        "QWEN",
        {"engine/enable_expert_parallel": False},
        ("640 / 4 = 160", "160 = 2 x 64 + 32", "a multiple of 64", "512 / 4 = 128 whole experts", "pads to 192"),
    ),
    Case(
        "sliced-experts-keep-the-alignment",
        "QWEN",
        {"engine/enable_expert_parallel": False, "engine/moe_backend": "cutlass"},
        ("use 1, 2 node(s)",),
    ),
    Case("sliced-experts-keep-the-alignment", "GEMMA", TP2, ("704 / 2 = 352", "352 = 5 x 64 + 32", "use 1 node(s)")),
    Case(
        "sliced-experts-keep-the-alignment", "GEMMA", {"groups": GLM["groups"]}, ("704 / 4 = 176", "176 = 2 x 64 + 48")
    ),
    Case(
        "sliced-experts-need-no-padding",
        "QWEN",
        {"engine/enable_expert_parallel": False, "engine/moe_backend": "marlin"},
        ("640 / 4 = 160, which marlin pads to 192", "192 / 160 = 1.20"),
    ),
    Case(
        "experts-backend-takes-nvfp4", "GLM", {"engine/moe_backend": "triton"}, ("is NVFP4", "use one of: auto, b12x")
    ),
    Case("glm-experts-have-a-proven-backend", "GLM", {"engine/moe_backend": REMOVE}, ("no input scales", "12.1")),
    Case(
        "glm-experts-have-a-proven-backend",
        "GLM",
        {"engine/moe_backend": "flashinfer_cutlass"},
        ("moe_backend: marlin",),
    ),
    # speculation
    Case("model-serves-by-itself", "GLM", {"model": "glm53-flash-dflash2", "speculative": None}, ("it is a drafter",)),
    Case(
        "drafter-belongs-to-the-model",
        "QWEN",
        {"speculative": DFLASH["speculative"]},
        ("another model than qwen38-flash-next-radixark-nvfp4, which has 0 drafter(s)", "use `method: mtp`"),
    ),
    Case(
        "draft-fits-the-block", "DFLASH", {"speculative/draft_tokens": 8}, ("8 - 1 = 7 is the most", "write 7 or less")
    ),
    Case(
        "prediction-layer-exists", "LAB", {"speculative": {"method": "mtp", "draft_tokens": 1}}, ("lab has 0 layers",)
    ),
    Case(
        "prediction-layer-is-as-declared",
        "GLM",
        {"model": "glm53-flash-nvidia-nvfp4"},
        ("is BF16 although config.json says nvfp4", "(256)"),
    ),
    Case(
        "drafter-has-its-own-attention",
        "DFLASH",
        {"speculative/attention_backend": REMOVE, "engine/other/attention_backend": "FLASHINFER_MLA_SPARSE_SM90"},
        ("would run on FLASHINFER_MLA_SPARSE_SM90",),
    ),
    # licences
    Case(
        "weights-may-earn-money",
        "GLM",
        {"speculative": DFLASH["speculative"]},
        ("CC BY-NC-ND 4.0 forbids commercial use",),
    ),
    Case(
        "weights-have-no-conditions",
        "GEMMA",
        {
            "model": "qwen38-flash-next-radixark-nvfp4",
            **TP2,
            "fabric": {"kind": "roce"},
            "engine/gpu_memory_utilization": 0.7,
        },
        ("Qwen Community License 1.0 sets conditions",),
    ),
    # kernels
    Case(
        "index-selection-survives-long-contexts",
        "GLM",
        {"engine/other/sparse_indexer_topk_backend": REMOVE},
        ("124 blocks at once where 48 fit", "per_row"),
    ),
    Case("loader-is-proven", "GLM", {"engine/other/load_format": "instanttensor"}, ("4.43 GiB less cache",)),
    Case("loader-is-proven", "GLM", {"engine/other/load_format": "sharded_state"}, ("fluent nonsense",)),
    # memory
    Case(
        "memory-holds-the-weights",
        "PROFILED",
        {**TP2, "model": "glm53-flash-fp8"},
        (
            "over 2 node(s) does not fit",
            "124,611 MiB - 151,380 MiB (weights) - 5,120 MiB (runtime)",
            "use 4 nodes",
        ),
    ),
    Case(
        "memory-holds-the-weights",
        "PROFILED",
        {**TP2, "model": "glm53-flash-bf16"},
        ("over 2 node(s) does not fit", "124,611 MiB - 296,304 MiB (weights)", "use 8 nodes"),
    ),
    Case("memory-holds-the-weights", "ONE_NODE", {"image": "patched"}, ("n-gram table (48,828 MiB) on disk",)),
    Case(
        "memory-holds-the-weights",
        "ONE_NODE",
        {"engine/gpu_memory_utilization": 0.6},
        ("0.6 of 124,611 MiB leaves no KV",),
    ),
    Case(
        "utilization-leaves-the-host-its-room",
        "QWEN",
        {"engine/gpu_memory_utilization": 0.85},
        ("124,611 MiB x (1 - 0.85) = 18,692 MiB", "each 0.01 is 1,246 MiB", "0.65", "0.72 to 0.75"),
    ),
    Case(
        "utilization-leaves-the-host-its-room",
        "QWEN",
        {"engine/gpu_memory_utilization": REMOVE},
        ("0.92 (the default) leaves 124,611 MiB x (1 - 0.92) = 9,969",),
    ),
    Case("utilization-leaves-the-host-its-room", "SGLANG", {"engine/other/mem_fraction_static": 0.9}, ("(1 - 0.9)",)),
    Case(
        "memory-floor-is-kept",
        "QWEN",
        {"engine/gpu_memory_utilization": 0.78},
        (
            "rank 0 of the group main has at best 124,611 MiB - 97,196 MiB (engine)",
            "the floor is 12 % = 14,953 MiB",
            "short",
        ),
    ),
    Case(
        "memory-floor-is-kept-surely",
        "QWEN",
        {"engine/gpu_memory_utilization": 0.72},
        ("rank 0 of the group main has at worst 124,611 MiB - 89,720 MiB (engine)", "0.7 keeps the floor surely"),
    ),
    Case(
        "memory-floor-lies-above-earlyoom",
        "GLM",
        {"memory": {"floor_percent": 2}},
        ("2 % of 124,611 MiB are 2,492 MiB",),
    ),
    Case(
        "cache-holds-one-request",
        "GLM",
        {"engine/kv_cache_memory_bytes": "1 GiB"},
        ("one request of 262,144 tokens takes (136 + 1) blocks", "at most 1,024 MiB"),
    ),
    Case(
        "cache-holds-one-request",
        "LAB",
        {"engine/kv_cache_memory_bytes": "64 KiB"},
        ("(4 + 1) blocks x 65,536 B = 327,680 B", "at most 65,536 B: 262,144 B short"),
    ),
    Case(
        "cache-holds-one-request-surely",
        "ONE_NODE",
        {"engine/gpu_memory_utilization": 0.735},
        ("(107 + 1) blocks x 45,487,104 B = 4,685 MiB", "perhaps only 4,123 MiB: 562 MiB short"),
    ),
    Case(
        "start-check-covers-a-pinned-cache",
        "GLM",
        {"engine/gpu_memory_utilization": 0.5},
        ("47,923 MiB (weights) + 5,120 MiB (runtime) + 16,384 MiB (pinned cache) = 69,427 MiB", "raise it to 0.56"),
    ),
    Case(
        "start-check-can-pass",
        "GLM",
        {"engine/gpu_memory_utilization": 0.97},
        ("124,611 MiB x 0.97 = 120,872 MiB free", "(system)", "set gpu_memory_utilization to 0.95 or less"),
    ),
    Case("start-check-passes-surely", "GLM", {"engine/gpu_memory_utilization": 0.957}, ("124,611 MiB x 0.957",)),
    Case(
        "required-memory-exists", "GLM", {"memory": {"required_bytes": "122 GiB"}}, ("124,928 MiB can never be free",)
    ),
    Case(
        "required-memory-covers-the-start-check",
        "GLM",
        {"memory": {"required_bytes": "70 GiB"}},
        ("71,680 MiB free", "less than 114,642 MiB: 42,962 MiB short"),
    ),
    # cache
    Case(
        "block-size-is-whole-pages", "GLM", {"engine/block_size": 2300}, ("2,300 = 8 x 256 + 252", "write 2048 or 2304")
    ),
    Case("block-size-is-whole-pages", "H200", {"engine/block_size": 100}, ("100 = 0 x 128 + 100", "write 128")),
    Case(
        "context-fits-the-positions",
        "QWEN",
        {"engine/max_model_len": 300000},
        ("300,000 - 262,144 = 37,856 too many", "write 262144 or less"),
    ),
    Case(
        "prefill-threshold-is-whole-blocks",
        "GLM",
        {"engine/other/long_prefill_token_threshold": 4096},
        ("4,096 = 1 x 2,304 + 1,792", "a multiple of 2304"),
    ),
    Case(
        "prefill-threshold-is-whole-blocks",
        "LAB",
        {"engine/other": {"long_prefill_token_threshold": 1024}},
        ("1,024 is more than max_model_len 512",),
    ),
    Case(
        "step-has-a-token-for-each-sequence",
        "GLM",
        {"engine/max_num_batched_tokens": 2048, "engine/max_num_seqs": 4096},
        ("2,048 less than 4,096 sequences",),
    ),
    Case(
        "step-holds-the-index-selection",
        "GLM",
        {"engine/max_num_batched_tokens": 2000},
        ("2,000 is 48 less than the 2,048",),
    ),
    Case(
        "latent-cache-dtype-is-exact", "GLM", {"engine/kv_cache_dtype": "fp8"}, ("64 - 0 = 64 are missing", "fp8_e4m3")
    ),
    Case(
        "sparse-attention-takes-fp8",
        "QWEN",
        {"image": "day-zero-qwen", "engine/kv_cache_dtype": "fp8_e4m3"},
        (DAY_ZERO_QWEN, "0.32.0 takes fp8"),
    ),
    Case(
        "sequences-fit-the-states",
        "GLM",
        {"engine/enforce_eager": False, "engine/max_num_seqs": 2048},
        ("1,140 blocks, 908 less than 2,048 sequences",),
    ),
    Case(
        "sequence-limit-is-given",
        "GLM",
        {"engine/enforce_eager": False, "engine/max_num_seqs": REMOVE},
        ("1,140 blocks",),
    ),
    Case(
        "cache-is-planned-as-it-runs",
        "GLM",
        {"engine/other/kda_prefill_backend": "triton"},
        ("counted without it: main:",),
    ),
)


@pytest.mark.parametrize("name", BASES)
def test_a_deployment_that_can_work_passes(made: Catalog, name: str) -> None:
    config, warned = BASES[name]
    assert set(findings(config, made)) == warned


@pytest.mark.parametrize("case", CASES, ids=[f"{case.rule}-{number}" for number, case in enumerate(CASES)])
def test_a_rule_speaks_where_it_must_and_nowhere_else(made: Catalog, case: Case) -> None:
    config, _ = BASES[case.base]
    assert case.rule not in findings(config, made)
    found = findings(changed(config, case.change), made)
    assert case.rule in found, f"only these spoke: {found}"
    for words in case.words:
        assert words in found[case.rule]


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == set(EVERY_RULE)


def test_ids_are_unique_and_every_rule_names_its_source() -> None:
    assert len(EVERY_RULE) == len(FIRST) + len(RULES)
    for rule in EVERY_RULE.values():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.id)
        assert len(rule.id) <= 40, "it is a key of the stack file"
        assert rule.summary.endswith(".")
        assert rule.source, f"{rule.id} has no `Source:`"


RAN = (
    ("GLM", {"engine/kv_cache_memory_bytes": "24 GiB", "engine/max_model_len": 1048576, "engine/max_num_seqs": 64}),
    ("GLM", {**TP2, "engine/kv_cache_memory_bytes": 4445787956, "memory": {"floor_percent": 2}, "engine/other": {}}),
    (
        "DFLASH",
        {"engine/kv_cache_memory_bytes": "26 GiB", "engine/enforce_eager": False, "engine/max_model_len": 524288},
    ),
    ("RAY", {"model": "glm53-flash-nvidia-nvfp4", "engine/moe_backend": "flashinfer_cutlass", "speculative": None}),
    (
        "PROFILED",
        {"engine/gpu_memory_utilization": 0.78, "memory": {"floor_percent": 5}, "engine/kv_cache_dtype": "fp8"},
    ),
    ("JOB", {"engine/gpu_memory_utilization": 0.78, "memory": {"floor_percent": 5}, "fabric": {"kind": "ethernet"}}),
    ("QWEN", {**TP2, "engine/enable_expert_parallel": False, "engine/gpu_memory_utilization": 0.7}),
    ("POOL", {}),
    ("ONE_NODE", {"engine/gpu_memory_utilization": 0.75}),
    ("H200", {"speculative": {"method": "mtp", "draft_tokens": 4}}),
)


@pytest.mark.parametrize(("name", "change"), RAN, ids=[f"{name}-{number}" for number, (name, _) in enumerate(RAN)])
def test_what_the_sources_ran_is_not_refused(made: Catalog, name: str, change: dict[str, Any]) -> None:
    spoken = findings(changed(BASES[name][0], change), made)
    assert not [rule for rule in spoken if EVERY_RULE[rule].severity == "refuse"], spoken


def test_a_warning_is_accepted_with_a_reason(made: Catalog) -> None:
    config = QWEN | {"acknowledged": {"weights-have-no-conditions": "we do not sell it"}}
    (finding,) = plan_release("x", config, made).findings
    assert (finding.rule, finding.acknowledged) == ("weights-have-no-conditions", "we do not sell it")


@pytest.mark.parametrize("rule", ["weights-may-earn-money", "no-such-rule"])
def test_an_acknowledgement_that_accepts_nothing_is_refused(made: Catalog, rule: str) -> None:
    with pytest.raises(SpecificationError, match="no warning of this rule") as caught:
        plan_release("x", GLM | {"acknowledged": {rule: "once it was needed"}}, made)
    assert f"acknowledged/{rule}" in str(caught.value)


def test_a_refusal_cannot_be_accepted(made: Catalog) -> None:
    config = changed(QWEN, {"engine/enable_expert_parallel": False})
    with pytest.raises(SpecificationError, match="640 / 4 = 160"):
        plan_release("x", config | {"acknowledged": {"sliced-experts-keep-the-alignment": "we dare"}}, made)


def test_two_groups_on_one_node_are_refused() -> None:
    config = changed(POOL, {"groups/b": ["n2", "n3"]})
    with pytest.raises(SpecificationError, match="node n2 is in a and again in b: a node runs one rank"):
        parse(DeploymentConfig, config, "Pulumi.x.yaml")


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.10.1", "fe80::1"])
def test_a_master_address_that_nobody_else_reaches_is_refused(address: str) -> None:
    data = copy.deepcopy(CLUSTERS["six"])
    data["nodes"]["n1"]["rails"][0]["address"] = address
    with pytest.raises(SpecificationError, match="other nodes cannot reach it"):
        parse(Cluster, data, "catalog/clusters/six.yaml")


def test_a_tag_without_a_digest_is_refused(made: Catalog) -> None:
    tag_alone = published() | {"registry": {"repository": "vllm/vllm-openai", "tag": "latest"}}
    (made.folder / "images" / "tag-alone.yaml").write_text(yaml.safe_dump(tag_alone))
    with pytest.raises(SpecificationError, match=r"vllm-openai:latest is named by a tag alone.*imagetools inspect"):
        plan_release("x", GLM | {"image": "tag-alone"}, made)
