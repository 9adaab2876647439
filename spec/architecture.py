"""What a model is made of, in the numbers that memory planning and the rules need, as catalog/models/*.yaml give them.

The numbers are those of the checkpoints' own config.json. Where vLLM demands something of one of them, the docstring
names the place in vLLM 0.30.0 to 0.33.0 that does.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from spec.base import Strict

Count = Annotated[int, Field(gt=0)]
CountOrNone = Annotated[int, Field(ge=0)]

GATED_EXPERT_ALIGNMENT = 64
"""Rows of a gated expert that a rank must hold a multiple of, on the CUTLASS backends of NVFP4.

vLLM `quantization/utils/flashinfer_fp4_moe.py` pads the block scales of w1 and w3 (2 x intermediate rows) to 128 and
raises "Intermediate size padding for w1 and w3 ... is not currently supported" when that changes anything.
"""


class Dimension(Strict):
    """A number that tensor parallelism must divide.

    Attributes:
        name: what it counts.
        size: how many there are.
        source: where vLLM demands it.
    """

    name: str
    size: Count
    source: str


class Experts(Strict):
    """The routed experts of each mixture-of-experts layer.

    Attributes:
        count: routed experts.
        active: chosen per token.
        shared: experts that every token takes.
        intermediate_size: width of one expert; tensor parallelism slices it, expert parallelism does not.
    """

    count: Count
    active: Count
    shared: CountOrNone
    intermediate_size: Count

    def intermediate_size_per_rank(self, tensor_parallel: int, expert_parallel: bool) -> int:
        """Returns how much of an expert's width one rank holds (vLLM `fused_moe/layer.py`)."""
        return self.intermediate_size if expert_parallel else self.intermediate_size // tensor_parallel

    def fits_gated_alignment(self, tensor_parallel: int, expert_parallel: bool) -> bool:
        """Whether the CUTLASS backends of NVFP4 accept this slice (see GATED_EXPERT_ALIGNMENT)."""
        return self.intermediate_size_per_rank(tensor_parallel, expert_parallel) % GATED_EXPERT_ALIGNMENT == 0


class Vision(Strict):
    """The vision tower.

    Attributes:
        depth: its blocks.
        hidden_size: their width.
        heads: attention heads, sliced by tensor parallelism unless `--mm-encoder-tp-mode data` replicates the tower.
    """

    depth: Count
    hidden_size: Count
    heads: Count


class Glm5Next(Strict):
    """GLM-5.3-Flash: linear (KDA) layers with a recurrent state, sparse latent (MLA) layers, an MTP head.

    vLLM class `Glm5NextForConditionalGeneration`, from 0.30.0 on; before that only in the image
    `vllm/vllm-openai:glm53-flash-*` (0.1.dev20051+g487ecf187).

    Attributes:
        linear_layers: with a recurrent and a convolution state per sequence, no cache per token.
        sparse_layers: with a latent cache per token and a pooled index key.
        mtp_layers: further sparse layers of the multi-token prediction head, in use only with method `mtp`.
        attention_heads: of the sparse layers.
        latent_dimension: `kv_lora_rank`, the one latent vector that a token leaves in the cache.
        rotary_dimension: `qk_rope_head_dim`; 0 here (NoPE), which decides the attention backend.
        indexer_heads, indexer_head_dimension, indexer_top_k: of the sparse layers' token selection.
        indexer_pool_tokens: `index_kpool`, tokens that share one index key (the checkpoint's 4, not the default 16).
        linear_heads, linear_head_dimension, convolution_width: of the linear layers' states.
        dense_layers, dense_intermediate_size: the first layers, which have no experts.
        hyper_connections: residual streams.
        positions: longest context.
    """

    type: Literal["glm5_next"]
    hidden_size: Count
    linear_layers: Count
    sparse_layers: Count
    mtp_layers: CountOrNone
    attention_heads: Count
    query_latent_dimension: Count
    latent_dimension: Count
    rotary_dimension: CountOrNone
    nope_dimension: Count
    value_head_dimension: Count
    indexer_heads: Count
    indexer_head_dimension: Count
    indexer_top_k: Count
    indexer_pool_tokens: Count
    linear_heads: Count
    linear_head_dimension: Count
    convolution_width: Count
    dense_layers: CountOrNone
    dense_intermediate_size: Count
    experts: Experts
    vision: Vision
    hyper_connections: Count
    vocabulary: Count
    positions: Count

    @property
    def layers(self) -> int:
        """All layers but the multi-token prediction head."""
        return self.linear_layers + self.sparse_layers

    @property
    def tensor_parallel_dimensions(self) -> tuple[Dimension, ...]:
        """What tensor parallelism must divide."""
        return (
            Dimension(
                name="attention heads", size=self.attention_heads, source="config/model.py verify_with_parallel_config"
            ),
            Dimension(
                name="linear attention heads", size=self.linear_heads, source="models/glm5next kda.py, a bare assert"
            ),
            Dimension(
                name="vision heads",
                size=self.vision.heads,
                source="models/glm5next multimodal.py, unless --mm-encoder-tp-mode data",
            ),
        )

    @property
    def no_pipeline_reason(self) -> str | None:
        """None: the class supports pipeline stages (0.30 and 0.31 need a sparse layer in each)."""
        return None


class NgramTable(Strict):
    """The n-gram embedding ("PLE") table of Qwen3.8-Flash-Next.

    Attributes:
        layers: how many layers look it up.
        embedding_dimension: width of what a lookup yields.
        order: longest n-gram; also the dilation of the convolution behind the lookup.
        heads_per_ngram: hash heads.
        convolution_width: `ple_conv_kernel_size` of that convolution.
        table_bytes: the table, which may be memory-mapped from disk instead of held.
    """

    layers: Count
    embedding_dimension: Count
    order: Count
    heads_per_ngram: Count
    convolution_width: Count
    table_bytes: Count


class Qwen4Exp(Strict):
    """Qwen3.8-Flash-Next: gated delta net layers, sparse (QSA) attention layers, an n-gram table, an MTP head.

    vLLM class `Qwen4ExpForConditionalGeneration`, from 0.29.0 on; before that as `qwen3_8_flash_next` in the image
    `vllm/vllm-openai:qwen38-flash-next` (0.1.dev20073+g8e685d198).

    Attributes:
        linear_layers: gated delta net, with a recurrent and a convolution state per sequence.
        attention_layers: full attention with an index key for every `indexer_pool_tokens` tokens.
        mtp_layers: further full attention layers of the multi-token prediction head.
        linear_key_heads, linear_value_heads, linear_head_dimension, convolution_width: of the linear layers' states.
        linear_state_dtype: `mamba_ssm_dtype` of the checkpoint; `--mamba-ssm-cache-dtype` overrides it.
        hyper_connections: residual streams; the n-gram layer's convolution state has hidden_size times as many columns.
    """

    type: Literal["qwen4_exp"]
    hidden_size: Count
    linear_layers: Count
    attention_layers: Count
    mtp_layers: CountOrNone
    attention_heads: Count
    key_value_heads: Count
    head_dimension: Count
    indexer_heads: Count
    indexer_key_heads: Count
    indexer_head_dimension: Count
    indexer_budget: Count
    indexer_pool_tokens: Count
    linear_key_heads: Count
    linear_value_heads: Count
    linear_head_dimension: Count
    convolution_width: Count
    linear_state_dtype: Literal["float32", "bfloat16"]
    ngram: NgramTable
    experts: Experts
    vision: Vision
    hyper_connections: Count
    hyper_connection_rank: Count
    vocabulary: Count
    positions: Count

    @property
    def layers(self) -> int:
        """All layers but the multi-token prediction head."""
        return self.linear_layers + self.attention_layers

    @property
    def tensor_parallel_dimensions(self) -> tuple[Dimension, ...]:
        """What tensor parallelism must divide."""
        return (
            Dimension(name="attention heads", size=self.attention_heads, source="models/qwen4_exp/nvidia/qsa.py"),
            Dimension(
                name="linear key heads",
                size=self.linear_key_heads,
                source="mamba_utils.py gated_delta_net_state_shape floors them, so a remainder is lost in silence",
            ),
            Dimension(
                name="linear value heads",
                size=self.linear_value_heads,
                source="mamba_utils.py gated_delta_net_state_shape, through distributed/utils.py divide",
            ),
            Dimension(
                name="vision heads",
                size=self.vision.heads,
                source="models/qwen2_5_vl.py, unless --mm-encoder-tp-mode data",
            ),
        )

    @property
    def no_pipeline_reason(self) -> str | None:
        """Why there are no pipeline stages (vLLM `model_executor/models/config.py`, from 0.29.0 on)."""
        return (
            f"{self.ngram.layers} layer(s) look up n-grams of the raw input tokens, which only the first pipeline "
            "stage receives; vLLM refuses it (the image of before 0.29 died at load: no module or parameter named "
            "'hyper_connection_mixer')"
        )


class _SplitByHeads(Strict):
    """What tensor parallelism divides by attention heads alone, and what pipeline stages can divide.

    The width of experts has a rule of its own (Experts), and nothing in the sources speaks against stages.
    """

    attention_heads: Count

    @property
    def tensor_parallel_dimensions(self) -> tuple[Dimension, ...]:
        """What tensor parallelism must divide."""
        source = "config/model.py verify_with_parallel_config"
        return (Dimension(name="attention heads", size=self.attention_heads, source=source),)

    @property
    def no_pipeline_reason(self) -> str | None:
        """Why pipeline stages cannot divide it: nothing does."""
        return None


class Gemma4(_SplitByHeads):
    """Gemma 4 with experts: sliding-window layers and full attention layers of another head size.

    Attributes:
        sliding_layers, full_layers: layers with a window and without one.
        sliding_window_tokens: the window.
        key_value_heads, head_dimension: of the sliding layers.
        full_key_value_heads, full_head_dimension: of the full layers.
    """

    type: Literal["gemma4"]
    hidden_size: Count
    sliding_layers: Count
    full_layers: Count
    key_value_heads: Count
    head_dimension: Count
    full_key_value_heads: Count
    full_head_dimension: Count
    sliding_window_tokens: Count
    dense_intermediate_size: Count
    experts: Experts
    vocabulary: Count
    positions: Count

    @property
    def layers(self) -> int:
        """All layers."""
        return self.sliding_layers + self.full_layers


class Qwen3(_SplitByHeads):
    """A plain dense Qwen3, as the lab trains it.

    Attributes:
        layers: all with full attention.
        positions: longest context.
    """

    type: Literal["qwen3"]
    hidden_size: Count
    layers: Count
    key_value_heads: Count
    head_dimension: Count
    intermediate_size: Count
    positions: Count


class Dflash2(Strict):
    """A block-diffusion drafter (`DFlash2DraftModel`): a small dense model that proposes tokens for another one.

    Attributes:
        layers: all with a sliding window.
        block_tokens: what it proposes at once, one of which is the target's own token.
        target_layers: layers of the target whose hidden states it reads (config `target_layer_ids`).
    """

    type: Literal["dflash2"]
    layers: Count
    key_value_heads: Count
    head_dimension: Count
    sliding_window_tokens: Count
    block_tokens: Count
    target_layers: tuple[int, ...]

    @property
    def most_draft_tokens(self) -> int:
        """The largest `num_speculative_tokens`: one position of the block is the target's own."""
        return self.block_tokens - 1


Architecture = Annotated[Glm5Next | Qwen4Exp | Gemma4 | Qwen3 | Dflash2, Field(discriminator="type")]


class Source(Strict):
    """Where the files of a checkpoint come from.

    Attributes:
        repository: on Hugging Face.
        revision: a commit of it; none where no source names one, which a deployment must not accept.
    """

    repository: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$")
    revision: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")


class Licence(Strict):
    """Under what terms the weights may be used.

    Attributes:
        name: as the source states it.
        commercial_use: whether it may earn money; `conditional` says that the terms set limits.
        redistribution: whether the weights or a conversion of them may be passed on.
        note: what an operator must know before using it.
    """

    name: str
    commercial_use: Literal["yes", "no", "conditional"]
    redistribution: Literal["yes", "no", "conditional"]
    note: str | None = None


class LoadedWeights(Strict):
    """What the weights take in memory: `replicated_bytes` on every rank and an equal share of `sharded_bytes`.

    Attributes:
        replicated_bytes, sharded_bytes: fitted to the measured loads of two or more tensor parallel sizes.
        measured: the measurements and what else confirms the fit.
    """

    replicated_bytes: CountOrNone
    sharded_bytes: Count
    measured: str

    def bytes_per_rank(self, tensor_parallel: int) -> int:
        """Returns replicated + sharded / TP."""
        return self.replicated_bytes + -(-self.sharded_bytes // tensor_parallel)


class OtherSize(Strict):
    """A size that another source gives for the same repository, kept because the sources disagree."""

    size_bytes: Count
    source: str


class Checkpoint(Strict):
    """The files of one variant of a model.

    Attributes:
        quantization: of the routed experts (or of all linear layers in a dense model).
        method: `quantization_config.quant_method` of its config.json, none where nothing is quantised.
        size_bytes: all files together.
        size_is_exact: false where the source rounds to a tenth of a GiB or to a GB.
        shards, files: weight files and all files, where a source counts them.
        other_sizes: what other sources say.
        loaded: what it takes in memory, where that was measured.
        memory_mapped_bytes: part of the files that may stay on disk.
        unquantized_mtp: the MTP layer is BF16 although config.json says otherwise (it then needs a patch: without it
            `RoutedExperts._load_w2` fails on 256 against 512).
        input_scales: whether the experts carry `input_scale`; without it activations stay 16 bit (weight-only).
    """

    quantization: Literal["nvfp4", "fp8", "bfloat16"]
    method: Literal["modelopt", "compressed-tensors", "fp8"] | None
    size_bytes: Count
    size_is_exact: bool
    shards: Count | None = None
    files: Count | None = None
    other_sizes: tuple[OtherSize, ...] = ()
    loaded: LoadedWeights | None = None
    memory_mapped_bytes: CountOrNone = 0
    unquantized_mtp: bool = False
    input_scales: bool | None = None

    @model_validator(mode="after")
    def _mapped_part_is_smaller(self) -> "Checkpoint":
        if self.memory_mapped_bytes >= self.size_bytes:
            raise ValueError("memory_mapped_bytes is a part of size_bytes and cannot be as large")
        return self
