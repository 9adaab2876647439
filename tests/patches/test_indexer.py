"""What the index hands on when it has chosen nothing, or a pool of another request."""

import ast
from types import SimpleNamespace

import pytest

from tests.patches.patched import expression, patched

FILES = {
    "glm53-sm121": "vllm/model_executor/layers/sparse_attn_indexer_kpool.py",
    "glm53-nightly": "vllm/models/glm5next/nvidia/sparse_indexer.py",
    "sm121-vllm-0.31": "vllm/models/glm5next/nvidia/sparse_indexer.py",
    "sm121-vllm-0.32": "vllm/models/glm5next/nvidia/sparse_indexer.py",
    "sm121-vllm-0.33": "vllm/models/glm5next/nvidia/sparse_indexer.py",
}
POOLS = "vllm/models/glm5next/nvidia/ops/kpool_compress.py"


def assigned(text: str, name: str) -> list[ast.expr]:
    """Returns every value that a source gives this name."""
    return [
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == name for one in node.targets)
    ]


def full(size: tuple[int, int], value: int, *, dtype: str, device: str) -> list[list[int]]:
    assert (dtype, device) == ("int32", "cuda:0")
    return [[value] * size[1] for _ in range(size[0])]


@pytest.mark.parametrize(("chain", "file"), FILES.items())
def test_the_top_k_starts_as_none_chosen(chain: str, file: str) -> None:
    names = {
        "torch": SimpleNamespace(full=full, int32="int32"),
        "num_rows": 2,
        "select_k": 3,
        "logits": SimpleNamespace(device="cuda:0"),
    }
    found = [expression(value, names) for value in assigned(patched(chain).text(file), "pool_topk")]
    assert found == [[[-1, -1, -1], [-1, -1, -1]]] * 2  # once for prefill, once for decode


@pytest.mark.parametrize("chain", FILES)
@pytest.mark.parametrize(
    ("pool", "token"),
    [(0, 2), (6, 26), (7, -1), (2_000_000_000 // 4, -1), (-1, -1)],
)
def test_a_pool_beyond_the_request_is_dropped(chain: str, pool: int, token: int) -> None:
    """A request of 30 tokens has seven whole pools of four; place 2 in a pool."""
    names = {
        "tl": SimpleNamespace(where=lambda condition, yes, no: yes if condition else no),
        "pid": pool,
        "pool_len": 30 // 4,
        "hist_val": pool * 4 + 2,
    }
    values = [value for value in assigned(patched(chain).text(POOLS), "hist_out") if "pool_len" in ast.unparse(value)]
    assert [expression(value, names) for value in values] == [token]
