"""Rules about the KV cache: its blocks, its numbers, and what is scheduled into it."""

import math
import re
from collections.abc import Iterator

from spec.architecture import Dflash2, Glm5Next, Qwen4Exp
from spec.errors import Problem
from spec.kv_cache import DAY_ZERO, KvCachePlan
from spec.rules.rule import Estimate, Estimates, refuse, warn
from spec.rules.words import division
from spec.situation import Situation

_NOT_PLANNED = (
    *("mamba_ssm_cache_dtype", "mamba_cache_mode", "mamba_block_size", "kda_prefill_backend"),
    *("async_scheduling", "no_async_scheduling", "num_gpu_blocks_override", "hf_overrides"),
)
"""Flags that change what the cache holds and that the estimate of a stack does not read."""


@refuse
def block_size_is_whole_pages(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """A block of GLM's cache is whole pages of 64 pooled index keys, and a multiple of 128 tokens.

    Source: facts/seed-repos.md 3.4 (multiple of 256 and of 128: 2304 = 9 x 256); facts/vllm-patches.md section 4.
    """
    glm, block = situation.model.architecture, situation.config.engine.block_size
    if not isinstance(glm, Glm5Next) or block is None:
        return
    page = 64 * glm.indexer_pool_tokens
    has_pages = (situation.hardware.compute_capability or "12.1").startswith("12.")
    step = math.lcm(page, 128) if has_pages else 128
    if block % step:
        lower = block // step * step
        tokens = glm.indexer_pool_tokens
        why = f"an index page holds 64 keys of {tokens} tokens each, 64 x {tokens} = {page}"
        yield situation.problem(
            "engine/block_size",
            block,
            f"{division(block, step)}: " + (f"{why}, and " if has_pages else "") + f"a block is a multiple of {step}",
            f"write {f'{lower} or ' if lower else ''}{lower + step}; the sources use 2304 = 9 x 256",
        )


@refuse
def context_fits_the_positions(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """The longest context is not longer than what the model was made for.

    Source: vLLM config/model.py `_get_and_verify_max_len`; catalog/models (facts/vllm-patches.md 6.1).
    """
    architecture, asked = situation.model.architecture, situation.config.engine.max_model_len
    if isinstance(architecture, Dflash2) or asked <= architecture.positions or _is_stretched(situation):
        return
    yield situation.problem(
        "engine/max_model_len",
        asked,
        f"{situation.config.model} has {architecture.positions:,} positions: "
        f"{asked:,} - {architecture.positions:,} = {asked - architecture.positions:,} too many",
        f"write {architecture.positions} or less; or stretch the positions with hf_overrides",
    )


@refuse
def prefill_threshold_is_whole_blocks(situation: Situation, estimates: Estimates) -> Iterator[Problem]:
    """The long-prefill threshold is a multiple of the block and not longer than the context.

    Source: facts/seed-repos.md 3.4 (a multiple of 2304); vLLM config/scheduler.py.
    """
    threshold = situation.config.engine.other.get("long_prefill_token_threshold")
    if not isinstance(threshold, int) or threshold <= 0:
        return
    if threshold > situation.config.engine.max_model_len:
        yield situation.problem(
            "engine/other/long_prefill_token_threshold",
            threshold,
            f"{threshold:,} is more than max_model_len {situation.config.engine.max_model_len:,}: vLLM does not start",
            "write less",
        )
    if not _keeps_states(situation):
        return
    for group, cache in _caches(estimates):
        if threshold % cache.block_tokens:
            yield situation.problem(
                "engine/other/long_prefill_token_threshold",
                threshold,
                f"states of the group {group} are kept at the end of a block of {cache.block_tokens:,} tokens, and "
                f"{division(threshold, cache.block_tokens)}",
                f"write a multiple of {cache.block_tokens}",
            )


@refuse
def step_has_a_token_for_each_sequence(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """A step has at least one token for each sequence that is computed at once.

    Source: vLLM config/scheduler.py `verify_max_model_len`.
    """
    engine = situation.config.engine
    tokens, sequences = engine.max_num_batched_tokens, engine.max_num_seqs
    if tokens and sequences and tokens < sequences:
        yield situation.problem(
            "engine/max_num_batched_tokens",
            tokens,
            f"{tokens:,} tokens of a step are {sequences - tokens:,} less than {sequences:,} sequences (max_num_seqs)",
            "raise it, or lower max_num_seqs",
        )


@warn
def step_holds_the_index_selection(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """A step of GLM has at least as many tokens as its indexer selects.

    Source: facts/seed-repos.md 3.4 (below 2048 it ends with a segmentation fault in the warm-up, one recipe).
    """
    glm, tokens = situation.model.architecture, situation.config.engine.max_num_batched_tokens
    if isinstance(glm, Glm5Next) and tokens and tokens < glm.indexer_top_k:
        yield situation.problem(
            "engine/max_num_batched_tokens",
            tokens,
            f"{tokens:,} is {glm.indexer_top_k - tokens:,} less than the {glm.indexer_top_k:,} tokens that the indexer "
            "selects: one recipe saw the warm-up end in silence",
            f"write {glm.indexer_top_k} or more",
        )


@warn
def latent_cache_dtype_is_exact(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """GLM's fp8 cache is asked for as fp8_e4m3.

    Source: facts/seed-repos.md 3.4 (bare fp8 selects fp8_ds_mla in seed 002's nightly; seed 003 served it).
    """
    glm = situation.model.architecture
    if isinstance(glm, Glm5Next) and situation.config.engine.kv_cache_dtype == "fp8" and glm.rotary_dimension == 0:
        yield situation.problem(
            "engine/kv_cache_dtype",
            "fp8",
            "bare fp8 can become fp8_ds_mla, whose row needs 64 rotary numbers, and this model has "
            f"{glm.rotary_dimension}: 64 - {glm.rotary_dimension} = {64 - glm.rotary_dimension} are missing",
            "write fp8_e4m3, which is one byte a number, too",
        )


@warn
def sparse_attention_takes_fp8(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """Qwen's sparse attention takes an fp8 cache in this image.

    Source: facts/seed-repos.md 3.3 (stock QSA accepts bf16 only) and 2.4 (patches for it); vLLM 0.32.0
    models/qwen4_exp/nvidia/qsa.py takes fp8.
    """
    dtype, version = situation.config.engine.kv_cache_dtype or "auto", situation.image.version
    if isinstance(situation.model.architecture, Qwen4Exp) and dtype.startswith("fp8") and not _is_at_least(version, 32):
        yield situation.problem(
            "engine/kv_cache_dtype",
            dtype,
            f"vLLM {version} takes only bfloat16 in sparse attention unless its image is patched; 0.32.0 takes fp8",
            f"use an image of 0.32.0 or later, or bfloat16 at 2 bytes a number instead of 1; or acknowledge that "
            f"{situation.image_file} has the patch",
        )


@refuse
def sequences_fit_the_states(situation: Situation, estimates: Estimates) -> Iterator[Problem]:
    """With full CUDA graphs each sequence of a hybrid model has a block for its state.

    Source: facts/seed-repos.md 3.4 and section 6, 73 (max_num_seqs exceeds available Mamba cache blocks).
    """
    sequences = situation.config.engine.max_num_seqs
    if sequences is None or not _captures_states(situation):
        return
    for group, estimate in estimates.items():
        blocks = _most_blocks(estimate)
        if blocks is not None and sequences > blocks:
            yield situation.problem(
                "engine/max_num_seqs",
                sequences,
                f"the cache of the group {group} has {blocks:,} blocks, {sequences - blocks:,} less than {sequences:,} "
                "sequences, each of which needs one for its state: vLLM ends at the capture of the graphs",
                f"write {blocks} or less, or give the cache more",
            )


@warn
def sequence_limit_is_given(situation: Situation, estimates: Estimates) -> Iterator[Problem]:
    """A hybrid model with CUDA graphs has its own limit of sequences.

    Source: facts/seed-repos.md section 6, 73 (leaving --max-num-seqs unset: 256 exceeds 32 blocks).
    """
    if situation.config.engine.max_num_seqs is not None or not _captures_states(situation):
        return
    for group, cache in _caches(estimates):
        yield situation.problem(
            "engine/max_num_seqs",
            None,
            f"vLLM takes 256 or 1,024 by itself, and the cache of the group {group} has {cache.blocks:,} blocks",
            "give a number, as 32 in seed 002",
        )


@warn
def cache_is_planned_as_it_runs(situation: Situation, estimates: Estimates) -> Iterator[Problem]:
    """No further flag changes what the planned cache holds.

    Source: spec/estimate.py reads the engine's own keys only; facts/vllm-patches.md 6.3.
    """
    if not any(True for _ in _caches(estimates)):
        return
    for name, value in situation.config.engine.other.items():
        if name.replace("-", "_") in _NOT_PLANNED:
            yield situation.problem(
                f"engine/other/{name}",
                value,
                "it changes what the KV cache holds, and the plan's tokens are counted without it: "
                + "; ".join(f"{group}: {cache.tokens:,}" for group, cache in _caches(estimates)),
                "remove it, or read the real figure in the engine's log (`GPU KV cache size`)",
            )


def _caches(estimates: Estimates) -> Iterator[tuple[str, KvCachePlan]]:
    return ((group, estimate.kv_cache) for group, estimate in estimates.items() if estimate.kv_cache)


def _most_blocks(estimate: Estimate) -> int | None:
    cache = estimate.kv_cache
    if cache is None:
        return None
    return (estimate.memory.kv_cache_bytes.high if estimate.memory else cache.kv_cache_bytes) // cache.bytes_per_block


def _keeps_states(situation: Situation) -> bool:
    """Whether recurrent states are kept at block boundaries."""
    hybrid = isinstance(situation.model.architecture, Glm5Next | Qwen4Exp)
    return hybrid and situation.config.engine.enable_prefix_caching is not False


def _captures_states(situation: Situation) -> bool:
    """Whether full CUDA graphs are captured over recurrent states."""
    engine = situation.config.engine
    compilation = engine.other.get("compilation_config")
    mode = compilation.get("cudagraph_mode") if isinstance(compilation, dict) else None
    hybrid = isinstance(situation.model.architecture, Glm5Next | Qwen4Exp)
    return hybrid and not engine.enforce_eager and mode not in ("NONE", "PIECEWISE") and situation.hardware.gpus > 0


def _is_stretched(situation: Situation) -> bool:
    """Whether the stack says that positions may be exceeded, as YaRN needs it."""
    environment = {**situation.image.environment, **situation.config.environment}
    return environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1" or "hf_overrides" in situation.config.engine.other


def _is_at_least(version: str, minor: int) -> bool:
    """Whether this vLLM is 0.MINOR or later."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return version not in DAY_ZERO and found is not None and (int(found[1]), int(found[2])) >= (0, minor)
