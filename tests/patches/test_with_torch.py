"""Patches that need torch or vLLM's own planner, in the Python of the lab's ranks."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from spec.arithmetic import GIB
from spec.kv_cache import CacheSettings, KvCachePlan, plan_kv_cache
from tests.conftest import VllmTree
from tests.patches.patched import ensure_sources_once, original, patched
from tests.unit.test_kv_cache import DFLASH2, GLM
from tools.patch_sources import PATCHES, ensure_tool

HERE = Path(__file__).parent
PLANNER = "vllm/v1/core/kv_cache_utils.py"
TABLE = "vllm/models/qwen4_exp/nvidia/ngram_embedding.py"
OFFLINE = """
import importlib.util, json, sys
out, sys.stdout = sys.stdout, sys.stderr
found = importlib.util.spec_from_file_location("offline_job", "/steps/offline-job/offline_job.py")
job = importlib.util.module_from_spec(found)
found.loader.exec_module(job)
json.dump(job._engine_arguments(sys.argv[1:]), out)
"""


def run(tree: VllmTree, arguments: list[str], **folders: Path) -> Any:
    """Runs a program in vLLM's Python and returns the JSON that it prints."""
    readable = {f"/{name}": folder for name, folder in folders.items() if name != "written"}
    printed = tree.python.run(
        arguments,
        what="try a patch",
        readable={"/opt/vllm": tree.folder, "/checks": HERE, "/steps": PATCHES / "steps"} | readable,
        writable={"/written": folders["written"]} if "written" in folders else {},
        environment={
            "PYTHONPATH": ":".join([*(name for name in readable if name == "/tried"), "/opt/vllm"]),
            "VLLM_CACHE_ROOT": "/tmp/vllm",
            "VLLM_TARGET_DEVICE": "cpu",
            "TRITON_INTERPRET": "1",
            "VLLM_PLE_MMAP": "1",
            "VLLM_PLE_MMAP_PREWARM": "1",
        },
    )
    return json.loads(printed)


@pytest.fixture(scope="module")
def patched_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of vLLM 0.31.0 with the planner and the table as their chains make them."""
    folder = tree_with_planner(tmp_path_factory.mktemp("patched"), "sm121-vllm-0.31-dflash2")
    (folder / TABLE).write_text(patched("qwen38-mmap").text(TABLE), encoding="utf-8")
    shutil.copyfile(PATCHES / "steps" / "ple-mmap" / "ple_mmap.py", (folder / TABLE).parent / "ple_mmap.py")
    return folder


@pytest.fixture(scope="module")
def own_region_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of vLLM 0.31.0 with the planner of the second source's nightly."""
    return tree_with_planner(tmp_path_factory.mktemp("own-region"), "glm53-nightly")


def tree_with_planner(folder: Path, chain: str) -> Path:
    shutil.copytree(ensure_sources_once()["vllm", "0.31.0"] / "vllm", folder / "vllm")
    (folder / PLANNER).write_text(patched(chain).text(PLANNER), encoding="utf-8")
    return folder


@dataclass(frozen=True)
class Planned:
    """What vLLM's own planner answered (plan_kv_cache.py)."""

    groups: list[list[str]]
    drafter_block: int
    drafter_page: int
    latent_page: int
    shares_slots: list[bool]
    places: dict[str, list[int]]
    blocks: int
    bytes_of_a_request: int
    smaller: list[Any]
    tokens: int

    @property
    def bytes_per_block(self) -> int:
        (size,) = {size for _, _, _, size in self.places.values()}
        assert size % self.blocks == 0
        return size // self.blocks

    def regions(self, block: int) -> dict[str, tuple[int, int]]:
        """Returns where the bytes of a block of each layer start and end."""
        return {
            name: (start + block * way, start + block * way + page)
            for name, (start, page, way, _) in self.places.items()
        }


def plan_by_vllm(tree: VllmTree, tensor_parallel: int, block: int, tried: Path | None = None) -> Planned:
    program = ["/checks/plan_kv_cache.py", str(tensor_parallel), str(block)]
    return Planned(**run(tree, program, **({"tried": tried} if tried else {})))


def plan_by_us(placement: Literal["own-region", "shared-slots"], tensor_parallel: int, block: int) -> KvCachePlan:
    settings = CacheSettings(
        vllm_version="0.31.0",
        tensor_parallel=tensor_parallel,
        kv_cache_dtype="fp8_e4m3",
        block_size=block,
        kv_cache_bytes=26 * GIB,
        max_model_len=524_288,
        max_num_batched_tokens=16_384,
        draft_tokens=7,
        drafter_placement=placement,
    )
    return plan_kv_cache(GLM, settings, DFLASH2)


@pytest.mark.parametrize(("tensor_parallel", "block", "tokens"), [(4, 2304, 3_757_397), (2, 4608, 3_151_969)])
def test_vllms_own_planner_puts_the_drafter_into_latent_slots(
    vllm_tree: VllmTree, patched_tree: Path, tensor_parallel: int, block: int, tokens: int
) -> None:
    planned = plan_by_vllm(vllm_tree, tensor_parallel, block, patched_tree)
    assert sorted(map(len, planned.groups)) == [5, 8, 8, 9, 9, 11, 22]
    assert (planned.drafter_block, planned.drafter_page, planned.latent_page) == (2304, 512 * block, 512 * block)
    assert planned.shares_slots == [True] * 5
    ours = plan_by_us("shared-slots", tensor_parallel, block)
    assert (ours.blocks, ours.tokens) == (planned.blocks, planned.tokens)
    assert planned.tokens == tokens


@pytest.mark.parametrize(("tensor_parallel", "block", "tokens"), [(4, 2304, 2_632_595), (2, 4608, 1_785_856)])
def test_vllms_own_planner_gives_the_drafter_bytes_of_its_own(
    vllm_tree: VllmTree, own_region_tree: Path, tensor_parallel: int, block: int, tokens: int
) -> None:
    """At TP4 this is the second source's boot, to the token."""
    planned = plan_by_vllm(vllm_tree, tensor_parallel, block, own_region_tree)
    drafter_page = block * 2 * (8 // tensor_parallel) * 128
    assert (planned.drafter_block, planned.drafter_page) == (block, drafter_page)
    assert planned.bytes_per_block == 11 * block * (512 + 33) + 5 * drafter_page
    assert planned.bytes_of_a_request % planned.bytes_per_block == 0
    ours = plan_by_us("own-region", tensor_parallel, block)
    assert (ours.blocks, ours.tokens) == (planned.blocks, planned.tokens)
    assert ours.blocks_per_request == planned.bytes_of_a_request // planned.bytes_per_block
    assert planned.tokens == tokens


def test_no_layer_has_a_byte_of_the_drafters(vllm_tree: VllmTree, own_region_tree: Path) -> None:
    """Nor of another of its layers; and the regions of all blocks end where the memory ends."""
    planned = plan_by_vllm(vllm_tree, 4, 2304, own_region_tree)
    drafter = {name for name in planned.places if name.startswith("drafter")}
    total = planned.bytes_per_block * planned.blocks
    whole = {name: (start, start + way * planned.blocks) for name, (start, _, way, _) in planned.places.items()}
    assert max(end for _, end in whole.values()) == total
    for mine in drafter:
        for other in planned.places:
            assert other == mine or whole[other][1] <= whole[mine][0] or whole[mine][1] <= whole[other][0]
    # A rank with less memory decides for all, and all then have the same places.
    assert planned.smaller == [25 * GIB // planned.bytes_per_block] * 2 + [True]


@pytest.mark.parametrize(("tensor_parallel", "block"), [(4, 2304), (2, 4608)])
def test_the_groups_are_those_of_the_release_that_forms_them_itself(
    vllm_tree: VllmTree, own_region_tree: Path, tensor_parallel: int, block: int
) -> None:
    """vLLM 0.32.0 groups the same layers the same way, so a request takes as many blocks; its blocks are smaller."""
    patched_0_31 = plan_by_vllm(vllm_tree, tensor_parallel, block, own_region_tree)
    stock_0_32 = plan_by_vllm(vllm_tree, tensor_parallel, block)
    assert patched_0_31.groups == stock_0_32.groups
    assert (patched_0_31.drafter_block, patched_0_31.drafter_page) == (
        stock_0_32.drafter_block,
        stock_0_32.drafter_page,
    )
    requests = [plan.bytes_of_a_request // plan.bytes_per_block for plan in (patched_0_31, stock_0_32)]
    assert requests[0] == requests[1]
    assert patched_0_31.bytes_per_block > stock_0_32.bytes_per_block


def test_the_ring_of_sparse_attention_is_not_the_block_of_the_cache(
    vllm_tree: VllmTree, patched_tree: Path, tmp_path: Path
) -> None:
    """What mamba-upstream asserts: 0.31.0's engine, on the groups that its planner makes of Qwen's layers."""
    core = "vllm/v1/engine/core.py"
    answer = run(vllm_tree, ["/checks/block_size.py", f"/tried/{core}"], tried=patched_tree)
    assert answer == {"groups": [[8, False], [1616, True]], "block": 1616}
    # The engine of 0.29.0, on the same groups, takes the ring's.
    (tmp_path / "core.py").write_text(original("vllm", "0.29.0", core), encoding="utf-8")
    older = run(vllm_tree, ["/checks/block_size.py", "/older/core.py"], tried=patched_tree, older=tmp_path)
    assert older["block"] == 8


def test_the_kernel_of_sparse_attention_answers_as_attention_is_defined(vllm_tree: VllmTree) -> None:
    """In Triton's interpreter, without a GPU: other row lengths than a tile, none, and the whole budget."""
    arguments = ["/checks/attend.py", "/steps/qsa-triton/qsa_packed_attention.py"]
    answer = run(vllm_tree, arguments, tried=ensure_tool("triton"))
    assert set(answer["differences"]) == {"one rank", "two ranks", "full budget"}
    assert all(difference < 2e-3 for difference in answer["differences"].values()), answer["differences"]
    refusals = answer["refusals"]
    assert "one query a row: 2" in refusals["two queries a row"]
    assert "leave out --kv-cache-dtype" in refusals["FP8 keys"]
    assert "does not take these shapes" in refusals["head of 192"]
    assert "contiguous" in refusals["strided"]


def test_rows_of_the_table_come_from_the_files(vllm_tree: VllmTree, tmp_path: Path) -> None:
    read = run(vllm_tree, ["/checks/read_table.py", "/written", "/steps/ple-mmap/ple_mmap.py"], written=tmp_path)
    assert read == {
        "type": "torch.float8_e4m3fn",
        "shape": [40, 3, 16],
        "equal": True,
        "none": [0, 3, 16],
        "refusal": "/written/model.safetensors.index.json names 4 shards, which are not one whole n-gram table",
    }


def test_vllms_own_embedding_keeps_no_row_in_memory(vllm_tree: VllmTree, patched_tree: Path, tmp_path: Path) -> None:
    answer = run(vllm_tree, ["/checks/embed.py", "/written"], tried=patched_tree, written=tmp_path)
    assert answer == {"rows_in_memory": 0, "equal": True, "dequantised": True}


def test_the_offline_job_hands_on_what_was_asked_and_nothing_else(vllm_tree: VllmTree) -> None:
    asked = "--tensor-parallel-size 4 --distributed-executor-backend external_launcher --max-model-len 131072"
    asked += " --gpu-memory-utilization 0.7 --kv-cache-dtype fp8_e4m3 --block-size 2304 --enforce-eager"
    asked += " --moe-backend marlin --pipeline-parallel-size 1"
    assert run(vllm_tree, ["-c", OFFLINE, "/model", *asked.split()]) == {
        "model": "/model",
        "tensor_parallel_size": 4,
        "distributed_executor_backend": "external_launcher",
        "max_model_len": 131_072,
        "gpu_memory_utilization": 0.7,
        "kv_cache_dtype": "fp8_e4m3",
        "block_size": 2304,
        "enforce_eager": True,
        "moe_backend": "marlin",
    }
