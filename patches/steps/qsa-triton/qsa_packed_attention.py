"""Attention of one query a row over the keys that Qwen's sparse attention packed for it, as a Triton kernel.

Stands in for flash_attn_varlen_func where QSA calls it: FlashAttention 4 cannot be compiled for compute capability
12.1. All lengths are read on the device, so a captured graph may be replayed with other ones.
"""

from typing import Any

import torch
import triton
import triton.language as tl

_BLOCK_KEYS = 32
_LEAST_DOT = 16  # rows of the smallest product that tl.dot takes


@triton.jit
def _attend(
    queries,
    keys,
    values,
    output,
    key_starts,
    scale,
    group: tl.constexpr,
    key_heads: tl.constexpr,
    head_dim: tl.constexpr,
    block_group: tl.constexpr,
    block_keys: tl.constexpr,
):
    """One program a row and key head: all query heads of that key head at once, so that a key is read once."""
    row, key_head = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(key_starts + row), tl.load(key_starts + row + 1)
    member, column = tl.arange(0, block_group), tl.arange(0, head_dim)
    is_member = (member < group)[:, None]
    query_head = (row * key_heads + key_head) * group + member
    query_place = query_head[:, None] * head_dim + column[None, :]
    query = tl.load(queries + query_place, mask=is_member, other=0.0)
    largest = tl.full([block_group], -float("inf"), tl.float32)
    total = tl.zeros([block_group], tl.float32)
    mixed = tl.zeros([block_group, head_dim], tl.float32)
    for start in range(begin, end, block_keys):
        place = start + tl.arange(0, block_keys)
        is_key = place < end
        # 64 bits: as many keys as a long batch packs pass 2^31 numbers.
        key_place = (place.to(tl.int64) * key_heads + key_head)[:, None] * head_dim + column[None, :]
        key = tl.load(keys + key_place, mask=is_key[:, None], other=0.0)
        score = tl.where(is_key[None, :], tl.dot(query, tl.trans(key)) * scale, -float("inf"))
        larger = tl.maximum(largest, tl.max(score, axis=1))
        shrink = tl.exp(largest - larger)
        weight = tl.exp(score - larger[:, None])
        value = tl.load(values + key_place, mask=is_key[:, None], other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(weight.to(value.dtype), value)
        total = total * shrink + tl.sum(weight, axis=1)
        largest = larger
    # A row without keys, as graphs pad them, gives zeros.
    answer = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(output + query_place, answer.to(output.dtype.element_ty), mask=is_member)


def packed_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,  # noqa: ARG001 - read on the device, where graphs change it
    softmax_scale: float,
    causal: bool,  # noqa: ARG001 - the last query sees every key either way
) -> torch.Tensor:
    """Returns what flash_attn_varlen_func would for these arguments, which are its own.

    Raises:
        ValueError: it is no call of QSA: more than one query a row, or shapes and types that were not tried.
    """
    _require(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q)
    rows, heads, head_dim = q.shape
    key_heads = k.shape[1]
    group = heads // key_heads
    output = torch.empty_like(q)
    _attend[(rows, key_heads)](
        q,
        k,
        v,
        output,
        cu_seqlens_k,
        softmax_scale,
        group=group,
        key_heads=key_heads,
        head_dim=head_dim,
        block_group=max(_LEAST_DOT, triton.next_power_of_2(group)),
        block_keys=_BLOCK_KEYS,
        num_warps=4,
    )
    return output


def _require(q: Any, k: Any, v: Any, query_starts: Any, key_starts: Any, most_queries: int) -> None:
    if most_queries != 1 or query_starts.numel() != q.shape[0] + 1 or key_starts.numel() != q.shape[0] + 1:
        raise ValueError(f"packed_attention takes one query a row: {most_queries}, {q.shape}, {key_starts.shape}")
    if k.shape != v.shape or q.shape[1] % k.shape[1] or q.shape[2] != k.shape[2] or q.shape[2] & (q.shape[2] - 1):
        raise ValueError(f"packed_attention does not take these shapes: {q.shape}, {k.shape}, {v.shape}")
    if q.dtype not in (torch.bfloat16, torch.float16) or k.dtype != q.dtype or v.dtype != q.dtype:
        raise ValueError(
            f"packed_attention takes queries, keys and values of one 16-bit type, not {q.dtype}, {k.dtype} and "
            f"{v.dtype}: leave out --kv-cache-dtype"
        )
    if not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()) or key_starts.dtype != torch.int32:
        raise ValueError("packed_attention takes contiguous tensors and 32-bit starts")
