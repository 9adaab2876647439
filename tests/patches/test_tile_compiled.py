"""What a block needs by the header itself: its own structure and choice, compiled for this machine, without a GPU."""

import re
import subprocess
from pathlib import Path

import pytest

from lab.packages import ensure
from runtime.build.edits import apply_edits
from tests.patches.patched import as_built, original
from tests.patches.test_tile import HEADER, all_edits, edited, shared_bytes
from tools.patch_table import Measured

STEPS = {
    "0.6.18": "fp8-tile-0.6.18",
    "0.6.18.post1": "fp8-tile-0.6.18",
    "0.7.0.post1": "fp8-tile-0.7.0",
    "0.7.2.post1": "fp8-tile-0.7.2",
    "0.7.4": "fp8-tile-0.7.2",
}
GB10_PER_MULTIPROCESSOR, GB10_PER_BLOCK = 102_400, 101_376
LARGER = (167_936, 233_472)  # A100 and H100
PROGRAM = """
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <type_traits>
struct __nv_fp8_e4m3 { uint8_t bits; };
struct bfloat16 { uint16_t bits; };
enum cudaError_t { cudaSuccess, cudaErrorNotSupported };
#define FLASHINFER_ERROR(text) std::fputs((text).c_str(), stderr)
%(structure)s
%(choice)s
template <typename DTypeKV>
cudaError_t show(int smem_limit_per_sm) {
  DISPATCH_SMEM_CONFIG(smem_limit_per_sm, NUM_STAGES, CTA_TILE_KV, QK_SHARD, {
    %(effective)s
    std::printf("%%u %%zu\\n", EFF_CTA_TILE_KV,
                sizeof(SharedStorageQKVO<EFF_NUM_STAGES, 64, EFF_CTA_TILE_KV, 512, 0, bfloat16, DTypeKV, bfloat16>));
  });
  return cudaSuccess;
}
int main(int, char** arguments) {
  int has = std::atoi(arguments[1]);
  return show<__nv_fp8_e4m3>(has) || show<bfloat16>(has);
}
"""


def part(text: str, pattern: str) -> str:
    (found,) = re.findall(pattern, text, re.DOTALL | re.MULTILINE)
    return found


def compiled(text: str, folder: Path) -> Path:
    """Compiles the header's structure, its table of tiles and what it makes of them, with GLM's 512 columns."""
    pieces = {
        "structure": part(text, r"^template <uint32_t NUM_STAGES[^{]*?struct SharedStorageQKVO \{.*?^\};"),
        "choice": part(text, r"^#define DISPATCH_SMEM_CONFIG.*?\n  \}\n"),
        "effective": part(text, r"constexpr uint32_t EFF_NUM_STAGES = .*?(?=constexpr bool EFF_QK_SHARD)"),
    }
    source, program = folder / "tile.cpp", folder / "tile"
    source.write_text(PROGRAM % pieces, encoding="utf-8")
    ensure(["g++"], ["g++"], "to compile a header of FlashInfer", print)
    subprocess.run(["g++", "-std=c++17", "-o", str(program), str(source)], check=True, capture_output=True)
    return program


def needs(program: Path, per_multiprocessor: int) -> list[tuple[int, int]]:
    """Returns tile and bytes of a block, for an FP8 cache and for one of bfloat16."""
    shown = subprocess.run([str(program), str(per_multiprocessor)], capture_output=True, text=True, check=True).stdout
    return [(int(tile), int(size)) for tile, size in (line.split() for line in shown.splitlines())]


@pytest.mark.parametrize(("release", "step"), STEPS.items())
def test_bytes_of_a_block_by_the_header_itself(release: str, step: str, tmp_path: Path) -> None:
    before = original("flashinfer", release, HEADER)
    edits = [as_built(edit) for edit in Measured().steps[step].edits if edit.file == HEADER]
    after, _ = apply_edits(step, before, edits)
    stock, patched = (tmp_path / name for name in ("stock", "patched"))
    for folder in (stock, patched):
        folder.mkdir()
    stock_program, patched_program = compiled(before, stock), compiled(after, patched)
    assert needs(stock_program, GB10_PER_MULTIPROCESSOR) == [(32, 117_312), (16, 84_512)]
    assert needs(patched_program, GB10_PER_MULTIPROCESSOR) == [(16, 91_680), (16, 84_512)]
    assert 91_680 <= GB10_PER_BLOCK < 117_312
    for larger in LARGER:
        assert needs(patched_program, larger) == needs(stock_program, larger)


@pytest.mark.parametrize("release", ["0.7.2.post1", "0.7.4"])
def test_python_works_out_what_the_compiled_header_needs(release: str, tmp_path: Path) -> None:
    program = compiled(edited(HEADER, release, [0]), tmp_path)
    for device in (GB10_PER_MULTIPROCESSOR, *LARGER):
        worked_out = [shared_bytes(all_edits(release), device, is_fp8=is_fp8) for is_fp8 in (True, False)]
        assert worked_out == [size for _, size in needs(program, device)]
