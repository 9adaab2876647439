"""The tile of an FP8 cache: the header, and what FlashInfer 0.7.2 and later work out of it in Python."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.build.edits import apply_edits
from spec.chain import Edit as DescribedEdit
from tests.patches.patched import as_built, function, original, patched
from tools.patch_table import Measured

HEADER = "flashinfer/data/include/flashinfer/attention/mla.cuh"
PLANS = "flashinfer/mla/_batch_mla/_backends/_fa_common.py"
# Shared memory of a multiprocessor and what a block may have: GB10, an RTX card of its family, A100, H100.
GB10 = (102_400, 101_376)
A100 = (167_936, 166_912)
H100 = (233_472, 232_448)
CHAINS = ["glm53-sm121", "glm53-nightly", "sm121-vllm-0.31", "sm121-vllm-0.32", "sm121-vllm-0.33"]


class Rejected(Exception):  # noqa: N818 - as FlashInfer calls it
    """FlashInfer's _BackendPlanUnsupportedError."""


def header_tile(text: str, tile: int, is_fp8: bool) -> int:
    """Evaluates the header's choice of a tile."""
    (choice,) = re.findall(r"constexpr uint32_t EFF_CTA_TILE_KV =(?:\s*//[^\n]*\n)?\s*(.+?);", text, re.DOTALL)
    condition, then, otherwise = re.split(r" \? | : ", choice.replace("std::is_same_v<DTypeKV, __nv_fp8_e4m3>", "FP8"))
    names = {"FP8": is_fp8, "CTA_TILE_KV": tile}
    return eval(then if eval(condition.replace("&&", "and"), {}, names) else otherwise, {}, names)


def shared_bytes(text: str, per_multiprocessor: int, is_fp8: bool) -> int:
    sizes = function(text, "_generated_fa_shared_bytes", {"_BackendPlanUnsupportedError": Rejected})
    return sizes("fa2", 512, 0, is_fp8, per_multiprocessor)


@pytest.mark.parametrize("chain", CHAINS)
def test_the_header_takes_the_tile_that_fits_and_leaves_larger_devices_theirs(chain: str) -> None:
    text = patched(chain).text(HEADER)
    assert [header_tile(text, tile, is_fp8=True) for tile in (16, 32, 64)] == [16, 32, 32]
    assert [header_tile(text, tile, is_fp8=False) for tile in (16, 32, 64)] == [16, 32, 64]


def test_the_unpatched_header_insists_on_32() -> None:
    text = original("flashinfer", "0.7.2.post1", HEADER)
    assert [header_tile(text, tile, is_fp8=True) for tile in (16, 32, 64)] == [32, 32, 32]


@pytest.mark.parametrize("release", ["0.7.2.post1", "0.7.4"])
def test_bytes_of_a_block_against_what_gb10_has(release: str) -> None:
    before = original("flashinfer", release, PLANS)
    after = all_edits(release)
    assert shared_bytes(before, GB10[0], is_fp8=True) == 117_312 > GB10[1]
    assert shared_bytes(after, GB10[0], is_fp8=True) == 91_680 < GB10[1]
    for text in (before, after):
        assert shared_bytes(text, GB10[0], is_fp8=False) == 84_512
        # Larger devices keep their tile.
        assert shared_bytes(text, H100[0], is_fp8=True) == shared_bytes(before, H100[0], is_fp8=True)
        assert shared_bytes(text, A100[0], is_fp8=True) == shared_bytes(before, A100[0], is_fp8=True)


@pytest.mark.parametrize("release", ["0.7.2.post1", "0.7.4"])
def test_python_and_header_agree_on_the_tile_of_every_device(release: str) -> None:
    header = re.findall(
        r"smem_limit_per_sm >= (\d+)\) \{\s*\\\s*constexpr uint32_t NUM_STAGES = (\d);\s*\\\s*"
        r"constexpr uint32_t CTA_TILE_KV = (\d+);",
        original("flashinfer", release, HEADER),
    )
    sizes = [tuple(map(int, found)) for found in header]
    assert [size for size, _, _ in sizes] == [221_696, 147_968, 92_672]
    header_text = edited(HEADER, release, [0])
    for least, stages, tile in sizes:
        native = header_tile(header_text, tile, is_fp8=True)
        # q, then for each stage the FP8 rows with a column block of probabilities and their BF16 copy, then m and d.
        expected = 64 * 512 * 2 + stages * native * ((512 + 64) + 512 * 2) + stages * native * 2 + 2 * 64 * 4
        assert shared_bytes(all_edits(release), least, is_fp8=True) == expected


def edited(file: str, release: str, places: list[int]) -> str:
    """Returns a file of FlashInfer with some edits of the newest step."""
    every: tuple[DescribedEdit, ...] = Measured().steps["fp8-tile-0.7.2"].edits
    text, _ = apply_edits("fp8-tile-0.7.2", original("flashinfer", release, file), [as_built(every[n]) for n in places])
    return text


def all_edits(release: str) -> str:
    return edited(PLANS, release, [1, 2, 3])


def plan(text: str, version: tuple[int, int], memory: tuple[int, int]) -> Any:
    """Validates a plan of GLM's FP8 cache on a pretended device; raises what FlashInfer would."""
    torch = SimpleNamespace(int32="int32", dtype=str, float16="float16", bfloat16="bfloat16", float8_e4m3fn="fp8")
    sizes = function(text, "_generated_fa_shared_bytes", {"_BackendPlanUnsupportedError": Rejected})
    validate = function(
        text,
        "_validate_generated_fa_plan",
        {
            "torch": torch,
            "_BackendPlanUnsupportedError": Rejected,
            "get_compute_capability": lambda _: version,
            "_get_fa_shared_memory_limits": lambda _: memory,
            "_generated_fa_shared_bytes": sizes,
            "is_sm90a_supported": lambda _: version == (9, 0),
        },
    )
    numbers = SimpleNamespace(dtype="int32", numel=lambda: 2)
    lengths = SimpleNamespace(dtype="int32", numel=lambda: 1)
    return validate(
        backend="fa2",
        device="cuda:0",
        qo_indptr=numbers,
        kv_indptr=numbers,
        kv_indices=numbers,
        kv_len_arr=lengths,
        head_dim_ckv=512,
        head_dim_kpe=0,
        q_data_type="bfloat16",
        kv_data_type="fp8",
        output_dtype="bfloat16",
        scale_mode="kv-per-tensor",
    )


@pytest.mark.parametrize("release", ["0.7.2.post1", "0.7.4"])
def test_the_plan_of_glms_fp8_cache(release: str) -> None:
    """Without the third edit, which no public recipe has, the plan is refused although the kernel would fit."""
    with pytest.raises(Rejected, match="requires an SM90"):
        plan(original("flashinfer", release, PLANS), (12, 1), GB10)
    with pytest.raises(Rejected, match="needs 117312 shared-memory bytes per block, but this device supports 101376"):
        plan(edited(PLANS, release, [1]), (12, 1), GB10)
    plan(all_edits(release), (12, 1), GB10)
    plan(all_edits(release), (9, 0), H100)
    with pytest.raises(Rejected, match="requires an SM90"):
        plan(all_edits(release), (10, 0), H100)


def test_flashinfer_0_7_0_knows_nothing_of_the_tile_in_python() -> None:
    text = patched("glm53-nightly").text(PLANS)
    assert "if major not in (9, 12):" in text
    assert "tile_kv" not in text


@pytest.mark.parametrize("release", ["0.7.2.post1", "0.7.4"])
@pytest.mark.parametrize(
    ("memory", "refused_at"),
    [(GB10, {16, 32, 48, 64}), (H100, {32, 64})],
)
def test_causal_tiles_end_where_the_header_ends_them(
    release: str, memory: tuple[int, int], refused_at: set[int]
) -> None:
    """With 3 heads a tile of 128 ends inside query 42; the last key that it sees must not start a tile of the cache."""
    names = {
        "torch": SimpleNamespace(float8_e4m3fn="fp8"),
        "_BackendPlanUnsupportedError": Rejected,
        "_get_fa_shared_memory_limits": lambda _: memory,
    }
    validate = function(all_edits(release), "_validate_fa_causal_tile_bound", names)

    def is_refused(key: int) -> bool:
        try:
            validate([50], [key - 42 + 50], 3, "fa2", "fp8", "cuda:0")
        except Rejected:
            return True
        return False

    assert {key for key in range(10, 70) if is_refused(key)} == refused_at
