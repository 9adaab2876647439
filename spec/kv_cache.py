"""How many tokens a KV cache of so many bytes holds, by the formula of the vLLM version that will run.

    blocks = KV bytes per rank // bytes per block
    tokens = int(blocks / blocks per request x max_model_len)

(`get_kv_cache_capacity` and `get_max_concurrency_for_kv_cache_config`.) The figure that vLLM logs as "GPU KV cache
size" therefore rises with `--max-model-len` at the same bytes: compare bytes, not tokens. The pool is the smallest of
all ranks, while only rank 0 logs its memory.

Read in the sources of vLLM 0.29.0 to 0.33.0 and confirmed by running each version's own planner on hand-made specs
(tests/unit/test_kv_cache.py holds the results). The images of before a release ("day zero") behave as the release that
their branch became.
"""

import re
from typing import Literal

from pydantic import Field

from spec.architecture import Architecture, Dflash2, Gemma4, Glm5Next, Qwen3, Qwen4Exp
from spec.arithmetic import Step, ceil_div, round_up
from spec.base import Strict
from spec.kv_groups import Bucket, Group, Pages, block_bytes, packed_groups, uniform_page_groups, whole_group

KvCacheDtype = Literal["auto", "bfloat16", "fp8", "fp8_e4m3"]

DAY_ZERO = {
    "0.1.dev20051+g487ecf187": (0, 29, True),  # vllm/vllm-openai:glm53-flash-*, the branch of PR 53906
    "0.1.dev20073+g8e685d198": (0, 29, False),  # vllm/vllm-openai:qwen38-flash-next, the branch of PR 53896
}
"""Versions that images of before a release report: the release whose rules hold, and whether they know GLM."""


class PlanningError(ValueError):
    """Raised when vLLM could not arrange the cache, or when its rules for this version are not known here."""


class CacheRules(Strict):
    """What differs between vLLM versions when the cache is planned.

    Attributes:
        version: as the image reports it.
        glm: whether it knows GLM-5.3-Flash.
        indexer_alignment: the block is a multiple of 64 pooled index keys on compute capability 12.x (0.30.0).
        ring_holds_drafts: GLM's tail ring grows with the draft tokens (0.31.0).
        packs_glm: GLM has no grouper of its own any more, and an external drafter fits in unpatched (0.32.0).
        state_checkpoint: FlashKDA keeps one more state per group for prefix caching (0.32.0).
        block_is_whole_rows: a block is a multiple of the sparse kernel's row (0.32.0).
        rings_are_states: a ring may be split into groups (0.30.0).
    """

    version: str
    glm: bool
    indexer_alignment: bool
    ring_holds_drafts: bool
    packs_glm: bool
    state_checkpoint: bool
    block_is_whole_rows: bool
    rings_are_states: bool


def cache_rules(version: str) -> CacheRules:
    """Returns how this version of vLLM plans its cache.

    Args:
        version: a release, a nightly after it (which keeps the release's rules), or one of DAY_ZERO.

    Raises:
        PlanningError: its planner was not read: it is older than 0.29 or newer than 0.33.
    """
    if version in DAY_ZERO:
        major, minor, glm = DAY_ZERO[version]
    else:
        match = re.match(r"(\d+)\.(\d+)\.", f"{version}.")
        major, minor = (int(match[1]), int(match[2])) if match else (-1, -1)
        glm = (major, minor) >= (0, 30)
    if not (0, 29) <= (major, minor) <= (0, 33):
        raise PlanningError(
            f"vLLM {version}: its cache planner was not read, only those of 0.29 to 0.33 and "
            f"{', '.join(DAY_ZERO)}; read v1/core/kv_cache_planning.py of that version and add its rules here"
        )
    return CacheRules(
        version=version,
        glm=glm,
        indexer_alignment=minor >= 30,
        ring_holds_drafts=minor >= 31,
        packs_glm=minor >= 32,
        state_checkpoint=minor >= 32,
        block_is_whole_rows=minor >= 32,
        rings_are_states=minor >= 30,
    )


class CacheSettings(Strict):
    """What a deployment chooses that decides its cache.

    Attributes:
        vllm_version: of the image.
        tensor_parallel: ranks that share one copy of the model.
        kv_cache_bytes: of each rank.
        max_model_len: longest context.
        max_num_batched_tokens: most tokens of one step; needed only where layers have a window.
        kv_cache_dtype: `auto` is the model's bfloat16.
        draft_tokens: K of speculative decoding, 0 for none.
        block_size: what `--block-size` asks for; vLLM raises it where a state does not fit.
        prefix_caching: on, states are kept at block boundaries (`--mamba-cache-mode align`); off, only the running one.
        async_scheduling: two batches are in flight instead of one.
        linear_state_dtype: `--mamba-ssm-cache-dtype`.
        kda_prefill: kernel of GLM's linear layers; FlashKDA is what `auto` takes on compute capability 12.x.
        drafter_placement: how an image older than 0.32 was patched for an external drafter: with a region of its own
            in every block (seed 002), or in the slots of the sparse layers (tonyd2wild's overlay).
        default_block_size: what the attention backend prefers where nothing is asked for: 16 on CUDA, 128 on a CPU.
    """

    vllm_version: str
    tensor_parallel: int = Field(gt=0)
    kv_cache_bytes: int = Field(ge=0)
    max_model_len: int = Field(gt=0)
    max_num_batched_tokens: int | None = Field(default=None, gt=0)
    kv_cache_dtype: KvCacheDtype = "auto"
    draft_tokens: int = Field(default=0, ge=0)
    block_size: int | None = Field(default=None, gt=0)
    prefix_caching: bool = True
    async_scheduling: bool = True
    linear_state_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    kda_prefill: Literal["flashkda", "triton"] = "flashkda"
    drafter_placement: Literal["own-region", "shared-slots"] | None = None
    default_block_size: int = Field(default=16, gt=0)

    @property
    def element_bytes(self) -> int:
        """Bytes of one cached number."""
        return 1 if self.kv_cache_dtype.startswith("fp8") else 2

    @property
    def tokens_in_flight(self) -> int:
        """Tokens that are scheduled and not settled (`VllmConfig.max_in_flight_tokens`, without pipeline stages).

        Raises:
            PlanningError: the tokens of one step are not given.
        """
        if self.max_num_batched_tokens is None:
            raise PlanningError(
                "layers with a window also hold the tokens in flight: give max_num_batched_tokens, whose default in "
                "vLLM depends on the device"
            )
        return self.max_num_batched_tokens * (2 if self.async_scheduling else 1)


class KvCachePlan(Strict):
    """What the cache of each rank holds.

    Attributes:
        vllm_version: whose formula this is.
        max_model_len: longest context.
        kv_cache_bytes: of each rank.
        block_tokens: tokens of one block, which `--block-size` may fall short of.
        bytes_per_block, blocks: of the pool.
        blocks_per_request: that one request of the longest context takes.
        tokens: what vLLM logs as "GPU KV cache size".
        concurrency: requests of the longest context at once ("Maximum concurrency").
        groups: layers by block table.
        steps: the calculation, in order.
    """

    vllm_version: str
    max_model_len: int
    kv_cache_bytes: int
    block_tokens: int
    bytes_per_block: int
    blocks: int
    blocks_per_request: int
    tokens: int
    concurrency: float
    groups: tuple[Group, ...]
    steps: tuple[Step, ...]

    @property
    def least_bytes(self) -> int:
        """The least for which vLLM starts: one longest request and the block that its pool always holds back."""
        return (self.blocks_per_request + 1) * self.bytes_per_block

    @property
    def starts(self) -> bool:
        """Whether vLLM accepts the cache (`_check_enough_kv_cache_memory`)."""
        return self.kv_cache_bytes >= self.least_bytes

    @property
    def used_bytes(self) -> int:
        """What is allocated: whole blocks."""
        return self.blocks * self.bytes_per_block


class _Arrangement(Strict):
    """Where the caches of a model go, before anything is counted.

    Attributes:
        block_tokens: tokens of one block.
        shared: groups that use the same bytes of a block, each its own blocks.
        apart: groups with bytes of their own in every block.
        row_bytes: a block is a multiple of this.
        steps: how the block came about.
    """

    block_tokens: int
    shared: tuple[Group, ...]
    apart: tuple[Group, ...] = ()
    row_bytes: int = 1
    steps: tuple[Step, ...] = ()

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups."""
        return self.shared + self.apart

    @property
    def bytes_per_block(self) -> int:
        """What one block of the pool holds."""
        apart = sum(group.block_bytes for group in self.apart)
        return round_up(block_bytes(self.shared) + apart, self.row_bytes)


def plan_kv_cache(architecture: Architecture, settings: CacheSettings, drafter: Dflash2 | None = None) -> KvCachePlan:
    """Counts what the cache holds.

    Args:
        architecture: of the model.
        settings: what the deployment chooses.
        drafter: an external drafter; without one, draft tokens come from the model's own prediction head.

    Raises:
        PlanningError: vLLM could not arrange this cache, or its rules are not known.
    """
    arrangement = _arrange(architecture, settings, cache_rules(settings.vllm_version), drafter)
    per_block = arrangement.bytes_per_block
    blocks = settings.kv_cache_bytes // per_block
    per_request = sum(group.blocks_per_request for group in arrangement.groups)
    # In this order and with these types, as vLLM does it: the last token depends on it.
    concurrency = blocks / per_request
    tokens = int(concurrency * settings.max_model_len)
    return KvCachePlan(
        vllm_version=settings.vllm_version,
        max_model_len=settings.max_model_len,
        kv_cache_bytes=settings.kv_cache_bytes,
        block_tokens=arrangement.block_tokens,
        bytes_per_block=per_block,
        blocks=blocks,
        blocks_per_request=per_request,
        tokens=tokens,
        concurrency=concurrency,
        groups=arrangement.groups,
        steps=(
            *arrangement.steps,
            _block_bytes_step(arrangement),
            Step(
                quantity="blocks of the pool",
                formula="KV bytes per rank // bytes per block",
                substituted=f"{settings.kv_cache_bytes:,} // {per_block:,}",
                value=blocks,
                unit="blocks",
            ),
            *(
                Step(
                    quantity=f"blocks of one request for {group.name} ({group.layers} caches)",
                    formula=group.formula,
                    substituted=group.substituted,
                    value=group.blocks_per_request,
                    unit="blocks",
                )
                for group in arrangement.groups
            ),
            Step(
                quantity="tokens",
                formula="int(blocks / blocks of one request x max_model_len)",
                substituted=f"int({blocks:,} / {per_request:,} x {settings.max_model_len:,})",
                value=tokens,
                unit="tokens",
            ),
        ),
    )


def _block_bytes_step(arrangement: _Arrangement) -> Step:
    widest = max(arrangement.shared, key=lambda group: group.block_bytes)
    apart = "".join(f" + {group.block_bytes:,} for {group.name}" for group in arrangement.apart)
    rows = f", up to a multiple of {arrangement.row_bytes:,}" if arrangement.row_bytes > 1 else ""
    return Step(
        quantity="bytes per block",
        formula="bytes of the largest group, whose place the others share" + (" + those kept apart" if apart else ""),
        substituted=f"{widest.block_bytes:,} for {widest.name} ({widest.layers} caches){apart}{rows}",
        value=arrangement.bytes_per_block,
        unit="bytes",
    )


def _arrange(
    architecture: Architecture, settings: CacheSettings, rules: CacheRules, drafter: Dflash2 | None
) -> _Arrangement:
    if isinstance(architecture, Glm5Next):
        return _arrange_glm(architecture, settings, rules, drafter)
    if drafter is not None:
        raise PlanningError(f"the cache of a {architecture.type} with an external drafter is not known here")
    if isinstance(architecture, Qwen4Exp):
        return _arrange_qwen4(architecture, settings, rules)
    if isinstance(architecture, Gemma4):
        return _arrange_gemma4(architecture, settings)
    if isinstance(architecture, Qwen3):
        return _arrange_qwen3(architecture, settings)
    raise PlanningError(f"a {architecture.type} is served together with its target, whose cache holds both")


def _arrange_glm(glm: Glm5Next, settings: CacheSettings, rules: CacheRules, drafter: Dflash2 | None) -> _Arrangement:
    if not rules.glm:
        raise PlanningError(f"vLLM {rules.version} does not know GLM-5.3-Flash: it came with 0.30.0")
    caches = glm.sparse_layers + (glm.mtp_layers if settings.draft_tokens and drafter is None else 0)
    row = (glm.latent_dimension + glm.rotary_dimension) * settings.element_bytes
    block, step = _glm_block(glm, settings, rules, row)
    # A pooled index key is one fp8 vector with an fp32 scale for every 128 of its numbers.
    index_key = glm.indexer_head_dimension + ceil_div(glm.indexer_head_dimension, 128) * 4
    index_page = block // glm.indexer_pool_tokens * index_key
    checkpoints = int(rules.state_checkpoint and settings.kda_prefill == "flashkda")
    buckets = (
        _attention("sparse attention with its index", block, {block * row: caches, index_page: caches}, settings),
        _ring("open pool of the index", caches, _glm_ring_bytes(glm, settings, rules)),
        _states("linear attention", glm.linear_layers, block * row, settings, checkpoints),
    )
    window = _glm_drafter(drafter, settings, rules, block, row) if drafter else None
    is_apart = window is not None and not rules.packs_glm and settings.drafter_placement == "own-region"
    return _Arrangement(
        block_tokens=block,
        shared=packed_groups(buckets + ((window,) if window and not is_apart else ()), rules.rings_are_states),
        apart=(whole_group(window),) if window and is_apart else (),
        row_bytes=row if rules.block_is_whole_rows else 1,
        steps=(step,),
    )


def _glm_block(glm: Glm5Next, settings: CacheSettings, rules: CacheRules, row: int) -> tuple[int, Step]:
    heads = glm.linear_heads // settings.tensor_parallel
    # The recurrent state is float32; before 0.32 no flag reaches it.
    element = 2 if settings.linear_state_dtype == "bfloat16" and rules.packs_glm else 4
    recurrent = heads * glm.linear_head_dimension**2 * element
    convolution = 3 * heads * glm.linear_head_dimension * (glm.convolution_width - 1 + settings.draft_tokens) * 2
    # 128 for all hybrid models with latent attention; pages of 64 index keys are the only ones that the DeepGEMM
    # kernel takes on compute capability 12.x (platforms/cuda.py _get_indexer_block_alignment).
    pages = 64 * glm.indexer_pool_tokens if rules.indexer_alignment else 1
    return _block_that_holds(recurrent + convolution, row, settings, least=128, multiple_of=pages)


def _glm_ring_bytes(glm: Glm5Next, settings: CacheSettings, rules: CacheRules) -> int:
    pools = ceil_div(glm.indexer_pool_tokens + settings.draft_tokens, glm.indexer_pool_tokens)
    slots = glm.indexer_pool_tokens * (1 << (pools - 1).bit_length() if rules.ring_holds_drafts else 1)
    # Each slot holds a raw key and its gate score in bfloat16.
    return slots * 2 * glm.indexer_head_dimension * 2


def _glm_drafter(drafter: Dflash2, settings: CacheSettings, rules: CacheRules, block: int, row: int) -> Bucket:
    heads = max(1, drafter.key_value_heads // settings.tensor_parallel)
    token = 2 * heads * drafter.head_dimension * settings.element_bytes
    if not rules.packs_glm and settings.drafter_placement is None:
        raise PlanningError(
            f"vLLM {rules.version} cannot place a drafter's window layers beside GLM's latent ones, because an index "
            f"page of 33 bytes per token does not divide a latent page of {row}; take 0.32.0 or later, or say how the "
            "image was patched for it (drafter_placement)"
        )
    # tonyd2wild's overlay gives the drafter a block whose page is exactly a latent page, so that it needs no place.
    fits = not rules.packs_glm and settings.drafter_placement == "shared-slots"
    if fits and block * row % (64 * token):
        raise PlanningError(f"no drafter page of {token} bytes per token is as large as a latent page of {block * row}")
    tokens = block * row // token if fits else block
    return _window("drafter", drafter.layers, tokens, tokens * token, drafter.sliding_window_tokens, settings)


def _arrange_qwen4(qwen: Qwen4Exp, settings: CacheSettings, rules: CacheRules) -> _Arrangement:
    caches = qwen.attention_layers + (qwen.mtp_layers if settings.draft_tokens else 0)
    row = 2 * _key_value_heads(qwen.key_value_heads, settings) * qwen.head_dimension * settings.element_bytes
    block, step = _block_that_holds(_qwen4_state_bytes(qwen, settings), row, settings, least=16)
    # One bfloat16 index key for each few tokens; the ring also holds three int64 positions per slot.
    index_page = block // qwen.indexer_pool_tokens * qwen.indexer_head_dimension * 2
    ring_slots = round_up(qwen.indexer_pool_tokens + settings.draft_tokens, qwen.indexer_pool_tokens)
    buckets = (
        _attention("attention with its index", block, {block * row: caches, index_page: caches}, settings),
        _ring("open group of the index", caches, ring_slots * (qwen.indexer_head_dimension * 2 + 3 * 8)),
        _states("gated delta net", qwen.linear_layers, block * row, settings),
        _states("n-gram convolution", qwen.ngram.layers, block * row, settings),
    )
    return _Arrangement(block_tokens=block, shared=packed_groups(buckets, rules.rings_are_states), steps=(step,))


def _qwen4_state_bytes(qwen: Qwen4Exp, settings: CacheSettings) -> int:
    asked = settings.linear_state_dtype
    element = 2 if (qwen.linear_state_dtype if asked == "auto" else asked) == "bfloat16" else 4
    recurrent = qwen.linear_value_heads // settings.tensor_parallel * qwen.linear_head_dimension**2 * element
    columns = (2 * qwen.linear_key_heads + qwen.linear_value_heads) * qwen.linear_head_dimension
    rows = qwen.convolution_width - 1 + settings.draft_tokens
    # The convolution behind the n-gram table is dilated and held whole by every rank.
    ngram_rows = (qwen.ngram.convolution_width - 1) * qwen.ngram.order + settings.draft_tokens
    ngram = qwen.hyper_connections * qwen.hidden_size * ngram_rows * 2
    return max(recurrent + columns // settings.tensor_parallel * rows * 2, ngram)


def _arrange_gemma4(gemma: Gemma4, settings: CacheSettings) -> _Arrangement:
    asked = settings.block_size or settings.default_block_size
    sliding = 2 * _key_value_heads(gemma.key_value_heads, settings) * gemma.head_dimension
    full = 2 * _key_value_heads(gemma.full_key_value_heads, settings) * gemma.full_head_dimension
    page = asked * settings.element_bytes * max(sliding, full)
    # All pages are made as large as the largest by giving the others more tokens (unify_kv_cache_spec_page_size).
    full_tokens, sliding_tokens = (page // (token * settings.element_bytes) for token in (full, sliding))
    window = gemma.sliding_window_tokens
    buckets = (
        _attention("full attention", full_tokens, {page: gemma.full_layers}, settings),
        _window("sliding attention", gemma.sliding_layers, sliding_tokens, page, window, settings),
    )
    return _Arrangement(block_tokens=asked, shared=uniform_page_groups(buckets))


def _arrange_qwen3(qwen: Qwen3, settings: CacheSettings) -> _Arrangement:
    block = settings.block_size or settings.default_block_size
    heads = _key_value_heads(qwen.key_value_heads, settings)
    page = block * 2 * heads * qwen.head_dimension * settings.element_bytes
    bucket = _attention("attention", block, {page: qwen.layers}, settings)
    return _Arrangement(block_tokens=block, shared=uniform_page_groups((bucket,)))


def _key_value_heads(heads: int, settings: CacheSettings) -> int:
    return max(1, heads // settings.tensor_parallel)


def _block_that_holds(
    state_bytes: int, row: int, settings: CacheSettings, least: int, multiple_of: int = 1
) -> tuple[int, Step]:
    """Returns the block of a hybrid model, whose page must be as large as a state (`_align_hybrid_block_size`)."""
    asked = settings.block_size or settings.default_block_size
    alignment = max(asked, least)
    holding = round_up(alignment * ceil_div(state_bytes, alignment * row), multiple_of)
    block = max(asked, holding)
    return block, Step(
        quantity="tokens per block",
        formula="least multiple of the asked block (or the alignment) whose page holds one state",
        substituted=f"{block // alignment} x {alignment:,} so that {block:,} x {row:,} B >= {state_bytes:,} B",
        value=block,
        unit="tokens",
    )


def _attention(name: str, block: int, pages: dict[int, int], settings: CacheSettings) -> Bucket:
    return Bucket(
        name=name,
        kind="attention",
        pages=tuple(Pages(layers=layers, page_bytes=page) for page, layers in pages.items()),
        blocks_per_request=ceil_div(settings.max_model_len, block),
        formula="ceil(max_model_len / tokens per block)",
        substituted=f"ceil({settings.max_model_len:,} / {block:,})",
    )


def _ring(name: str, layers: int, page: int) -> Bucket:
    return Bucket(
        name=name,
        kind="ring",
        pages=(Pages(layers=layers, page_bytes=page),),
        blocks_per_request=1,
        formula="one for the whole life of a request",
        substituted="1",
    )


def _states(name: str, layers: int, page: int, settings: CacheSettings, checkpoints: int = 0) -> Bucket:
    kept = 2 + checkpoints if settings.prefix_caching else 1
    return Bucket(
        name=name,
        kind="state",
        pages=(Pages(layers=layers, page_bytes=page),),
        blocks_per_request=kept + settings.draft_tokens,
        formula="states kept (2 with prefix caching, 3 with FlashKDA checkpoints, else 1) + draft tokens",
        substituted=f"{kept} + {settings.draft_tokens}",
    )


def _window(name: str, layers: int, tokens: int, page: int, window: int, settings: CacheSettings) -> Bucket:
    in_flight = settings.tokens_in_flight
    held = min(window - 1 + in_flight, settings.max_model_len)
    return Bucket(
        name=name,
        kind="window",
        pages=(Pages(layers=layers, page_bytes=page),),
        blocks_per_request=ceil_div(held, tokens) + 1,
        formula="ceil(min(window - 1 + tokens in flight, max_model_len) / tokens per page) + 1",
        substituted=f"ceil(min({window - 1:,} + {in_flight:,}, {settings.max_model_len:,}) / {tokens:,}) + 1",
    )
