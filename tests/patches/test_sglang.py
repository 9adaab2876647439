"""Which kernel SGLang's sparse attention decodes with, once patched."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.patches.patched import function, original, patched

BACKEND = "sglang/srt/layers/attention/qwen_sparse_attn_backend.py"
# What the function imports, by module: the release's kernel for 12.1, ours, and FlashAttention 2.
IMPORTED: dict[str, dict[str, Any]] = {
    "sglang.srt.utils": {"is_sm121": lambda: False},
    "sglang.kernels.ops.attention": {"qwen38_qsa_sm121_varlen": "the release's own"},
    "sglang.srt.layers.attention.qsa_packed_attention": {"packed_attention": "ours"},
    "flash_attn": {"flash_attn_varlen_func": "FlashAttention"},
}


@pytest.fixture
def _imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes these modules importable, and the packages that they are in."""
    names = {".".join(name.split(".")[:depth]) for name in IMPORTED for depth in range(1, name.count(".") + 2)}
    for name in names:
        module = ModuleType(name)
        vars(module).update(IMPORTED.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)


def chosen(text: str, capability: tuple[int, int]) -> str:
    """Returns the function that QSA would call on such a device."""
    torch = SimpleNamespace(cuda=SimpleNamespace(get_device_capability=lambda: capability))
    return function(text, "_resolve_flash_attn_varlen_func", {"torch": torch})()


@pytest.mark.usefixtures("_imported")
@pytest.mark.parametrize(
    ("capability", "expected"),
    [((12, 1), "ours"), ((12, 0), "ours"), ((9, 0), "FlashAttention"), ((10, 0), "FlashAttention")],
)
def test_capability_12_decodes_with_our_kernel_and_others_as_before(capability: tuple[int, int], expected: str) -> None:
    """Without the release's own choice for 12.1, which the image of the release day does not have."""
    assert chosen(patched("qwen38-sglang").text(BACKEND), capability) == expected
    assert chosen(original("sglang", "0.5.20", BACKEND), capability) == "FlashAttention"


@pytest.mark.parametrize("release", ["0.5.20", "0.5.21", "0.5.22", "0.5.23"])
def test_releases_with_the_model_have_a_kernel_of_their_own(release: str) -> None:
    assert "return qwen38_qsa_sm121_varlen" in original("sglang", release, BACKEND)
