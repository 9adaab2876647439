"""Runs the Triton kernel of the step qsa-triton without a GPU, in Triton's interpreter, beside plain attention.

`attend.py MODULE`, with TRITON_INTERPRET=1. Prints JSON: for each shape the largest difference. In float16: the
interpreter multiplies the raw bits of bfloat16, which the model has.
"""

# pyright: reportMissingImports=false

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch

# (query heads, key heads, keys of each row): at TP1 and at TP2 of the model, a row without keys, a full budget.
SHAPES = {
    "one rank": (24, 2, [1, 31, 32, 33, 0, 200]),
    "two ranks": (12, 1, [7, 64, 129]),
    "full budget": (12, 1, [2051]),
}
HEAD_DIM = 256


def loaded(path: Path) -> Any:
    """Returns the step's module."""
    specification = importlib.util.spec_from_file_location("qsa_packed_attention", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def starts(lengths: list[int]) -> torch.Tensor:
    """Returns where each row starts, and the end."""
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def tensors(heads: int, key_heads: int, lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns queries, and keys and values with more rows than are used, as QSA's scratch has."""
    made = torch.Generator().manual_seed(sum(lengths))
    shapes = [(len(lengths), heads), (sum(lengths) + 5, key_heads), (sum(lengths) + 5, key_heads)]
    q, k, v = (torch.randn(*shape, HEAD_DIM, generator=made).to(torch.float16) for shape in shapes)
    k[sum(lengths) :] = v[sum(lengths) :] = float("nan")
    return q, k, v


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int], scale: float) -> torch.Tensor:
    """Returns attention by its definition, in float64."""
    group, rows, begin = q.shape[1] // k.shape[1], [], 0
    for row, length in enumerate(lengths):
        key = k[begin : begin + length].double().repeat_interleave(group, dim=1)
        value = v[begin : begin + length].double().repeat_interleave(group, dim=1)
        weights = torch.softmax(torch.einsum("hd,khd->hk", q[row].double(), key) * scale, dim=-1)
        rows.append(torch.einsum("hk,khd->hd", weights, value))
        begin += length
    return torch.stack(rows)


def called(module: Any, tensors_of_call: tuple[Any, Any, Any], lengths: list[int], **changed: Any) -> Any:
    """Calls it as QSA does."""
    usual = dict(zip("qkv", tensors_of_call, strict=True)) | {
        "cu_seqlens_q": torch.arange(len(lengths) + 1, dtype=torch.int32),
        "cu_seqlens_k": starts(lengths),
        "max_seqlen_q": 1,
        "max_seqlen_k": 2051,
        "softmax_scale": HEAD_DIM**-0.5,
        "causal": True,
    }
    return module.packed_attention(**usual | changed)


def refusal(module: Any, **changed: Any) -> str:
    """Returns what is said of a call that is not QSA's."""
    lengths = [3, 4]
    made = tensors(12, 1, lengths)
    try:
        called(module, made, lengths, **{name: make(*made) for name, make in changed.items()})
    except ValueError as error:
        return str(error)
    return "none"


def main() -> None:
    """Prints differences and refusals."""
    module = loaded(Path(sys.argv[1]))
    differences = {}
    for name, (heads, key_heads, lengths) in SHAPES.items():
        q, k, v = tensors(heads, key_heads, lengths)
        answer = called(module, (q, k, v), lengths)
        differences[name] = float((answer.double() - plain(q, k, v, lengths, HEAD_DIM**-0.5)).abs().max())
    refusals = {
        "two queries a row": refusal(module, max_seqlen_q=lambda *_: 2),
        "FP8 keys": refusal(module, k=lambda _, k, __: k.to(torch.float8_e4m3fn)),
        "head of 192": refusal(module, q=lambda q, *_: q[..., :192].contiguous()),
        "strided": refusal(module, v=lambda _, __, v: v.repeat(1, 1, 2)[..., ::2]),
    }
    print(json.dumps({"differences": differences, "refusals": refusals}))


if __name__ == "__main__":
    main()
