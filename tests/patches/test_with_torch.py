"""Patches that need torch or vLLM's own planner, in the Python of the lab's ranks."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from spec.arithmetic import GIB
from spec.kv_cache import CacheSettings, plan_kv_cache
from tests.conftest import VllmTree
from tests.patches.patched import ensure_sources_once, patched
from tests.unit.test_kv_cache import DFLASH2, GLM
from tools.patch_sources import PATCHES

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
            "VLLM_PLE_MMAP": "1",
            "VLLM_PLE_MMAP_PREWARM": "1",
        },
    )
    return json.loads(printed)


@pytest.fixture(scope="module")
def patched_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of vLLM 0.31.0 with the planner and the table as their chains make them."""
    folder = tmp_path_factory.mktemp("patched")
    shutil.copytree(ensure_sources_once()["vllm", "0.31.0"] / "vllm", folder / "vllm")
    (folder / PLANNER).write_text(patched("sm121-vllm-0.31-dflash2").text(PLANNER), encoding="utf-8")
    (folder / TABLE).write_text(patched("qwen38-mmap").text(TABLE), encoding="utf-8")
    shutil.copyfile(PATCHES / "steps" / "ple-mmap" / "ple_mmap.py", (folder / TABLE).parent / "ple_mmap.py")
    return folder


@pytest.mark.parametrize(("tensor_parallel", "block", "tokens"), [(4, 2304, 3_757_397), (2, 4608, 3_151_969)])
def test_vllms_own_planner_puts_the_drafter_into_latent_slots(
    vllm_tree: VllmTree, patched_tree: Path, tensor_parallel: int, block: int, tokens: int
) -> None:
    program = ["/checks/plan_kv_cache.py", str(tensor_parallel), str(block)]
    planned = run(vllm_tree, program, tried=patched_tree)
    assert planned == {
        "groups": [22, 11, 9, 9, 8, 8, 5],
        "drafter_block": 2304,
        "drafter_page": 512 * block,
        "latent_page": 512 * block,
        "shares_slots": [True] * 5,
        "blocks": planned["blocks"],
        "tokens": tokens,
    }
    ours = plan_kv_cache(
        GLM,
        CacheSettings(
            vllm_version="0.31.0",
            tensor_parallel=tensor_parallel,
            kv_cache_dtype="fp8_e4m3",
            block_size=block,
            kv_cache_bytes=26 * GIB,
            max_model_len=524_288,
            max_num_batched_tokens=16_384,
            draft_tokens=7,
            drafter_placement="shared-slots",
        ),
        DFLASH2,
    )
    assert (ours.blocks, ours.tokens) == (planned["blocks"], tokens)


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
