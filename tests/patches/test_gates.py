"""What patched gates answer on a pretended device: 9.0 is Hopper, 10.0 the larger Blackwell, 12.0 a card, 12.1 GB10."""

import ast
from types import SimpleNamespace
from typing import Any

import pytest

from tests.patches.patched import definition, expression, function, original, patched

GLM_CHAINS = ["glm53-sm121", "glm53-nightly", "sm121-vllm-0.31", "sm121-vllm-0.32", "sm121-vllm-0.33"]
CUDA = "vllm/platforms/cuda.py"
SPARSE = "vllm/v1/attention/backends/mla/flashinfer_mla_sparse_sm90.py"
HOPPER, LARGE_BLACKWELL, CARD, GB10 = (9, 0), (10, 0), (12, 0), (12, 1)


class Names:
    """Every attribute is its own name."""

    def __getattr__(self, name: str) -> str:
        return name


def capability(version: tuple[int, int]) -> Any:
    return SimpleNamespace(major=version[0], minor=version[1], to_int=lambda: version[0] * 10 + version[1])


def candidates(text: str, version: tuple[int, int]) -> list[str]:
    names = {"AttentionBackendEnum": Names(), "is_quantized_kv_cache": bool}
    prioritise = function(text, "_get_backend_priorities", names)
    return prioritise(True, capability(version), num_heads=16, kv_cache_dtype="fp8_e4m3", head_size=512)


@pytest.mark.parametrize("chain", GLM_CHAINS)
def test_the_sparse_backend_comes_before_the_one_that_cannot_do_without_rotary_dimensions(chain: str) -> None:
    text = patched(chain).text(CUDA)
    for version in (CARD, GB10):
        assert candidates(text, version) == [
            "TRITON_MLA",
            "FLASHINFER_MLA_SPARSE_SM90",
            "FLASHINFER_MLA_SPARSE_SM120",
        ]


@pytest.mark.parametrize(
    ("release", "chain"),
    [
        ("0.30.0", "glm53-sm121"),
        ("0.31.0", "sm121-vllm-0.31"),
        ("0.32.0", "sm121-vllm-0.32"),
        ("0.33.0", "sm121-vllm-0.33"),
    ],
)
def test_other_devices_keep_their_candidates(release: str, chain: str) -> None:
    before, after = original("vllm", release, CUDA), patched(chain).text(CUDA)
    assert candidates(before, GB10) == ["TRITON_MLA", "FLASHINFER_MLA_SPARSE_SM120"]
    for version in (HOPPER, LARGE_BLACKWELL, (8, 0)):
        assert candidates(before, version) == candidates(after, version)


@pytest.mark.parametrize("chain", GLM_CHAINS)
@pytest.mark.parametrize(
    ("version", "supported"), [(HOPPER, True), (GB10, True), (CARD, True), (LARGE_BLACKWELL, False), ((8, 9), False)]
)
def test_which_devices_the_sparse_backend_takes(chain: str, version: tuple[int, int], supported: bool) -> None:
    supports = function(patched(chain).text(SPARSE), "FlashInferMLASparseSM90Backend.supports_compute_capability", {})
    assert supports(None, capability(version)) is supported


@pytest.mark.parametrize("chain", GLM_CHAINS)
@pytest.mark.parametrize(("version", "kernels"), [(HOPPER, "fa3"), (CARD, "fa2"), (GB10, "fa2")])
def test_which_kernels_the_sparse_backend_asks_for(chain: str, version: tuple[int, int], kernels: str) -> None:
    built = definition(patched(chain).text(SPARSE), "_SM90State.__init__")
    asked = [node.value for node in ast.walk(built) if isinstance(node, ast.keyword) and node.arg == "backend"]
    torch = SimpleNamespace(cuda=SimpleNamespace(get_device_capability=lambda device: {"cuda:0": version}[device]))
    assert [expression(node, {"torch": torch, "device": "cuda:0"}) for node in asked] == [kernels]


@pytest.mark.parametrize("chain", GLM_CHAINS)
def test_dependent_launch_is_for_hopper_and_the_larger_blackwell(chain: str) -> None:
    text = patched(chain).text(CUDA)
    answers = {}
    for version in (HOPPER, LARGE_BLACKWELL, CARD, GB10, (8, 0)):
        cuda = SimpleNamespace(current_device=lambda: 0, get_device_capability=lambda _, found=version: found)
        launches = function(text, "CudaPlatformBase.is_arch_support_pdl", {"torch": SimpleNamespace(cuda=cuda)})
        answers[version] = launches(None)
    assert answers == {HOPPER: True, LARGE_BLACKWELL: True, CARD: False, GB10: False, (8, 0): False}


def test_dependent_launch_is_off_where_there_is_no_device() -> None:
    launches = function(patched("sm121-vllm-0.33").text(CUDA), "CudaPlatformBase.is_arch_support_pdl", {"torch": None})
    assert launches(None) is False


@pytest.mark.parametrize(("version", "supported"), [(HOPPER, True), (CARD, True), (GB10, False)])
def test_the_third_sources_gate_leaves_out_12_1_alone(version: tuple[int, int], supported: bool) -> None:
    number = version[0] * 10 + version[1]
    platform = SimpleNamespace(
        is_cuda=lambda: True,
        is_device_capability=lambda exact: number == exact,
        is_device_capability_family=lambda family: number // 10 == family // 10,
    )
    text = patched("glm53-sm121-offline").text("vllm/model_executor/layers/fused_moe/experts/flashinfer_cutlass_moe.py")
    names = {"current_platform": platform, "has_flashinfer_cutlass_fused_moe": lambda: True}
    assert function(text, "FlashInferExperts._supports_current_device", names)() is supported


@pytest.mark.parametrize("chain", ["glm53-nightly", "sm121-vllm-0.31"])
@pytest.mark.parametrize(("stored", "planned"), [("uint8", "float8_e4m3fn"), ("bfloat16", "bfloat16")])
def test_an_fp8_cache_is_planned_as_fp8(chain: str, stored: str, planned: str) -> None:
    built = definition(patched(chain).text(SPARSE), "FlashInferMLASparseSM90Builder.__init__")
    (state,) = [
        node
        for node in ast.walk(built)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_SM90State"
    ]
    names = {"torch": Names(), "kv_cache_spec": SimpleNamespace(dtype=stored)}
    assert expression(state.args[2], names) == planned
