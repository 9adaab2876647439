"""Measured figures of the sources as data (catalog/references/*.yaml): what a plan or a run is compared with."""

from typing import Literal

from pydantic import Field

from spec.base import Strict

Figure = float | tuple[float, float]
"""One number, or from where to where the source says it lay."""


class ReferenceSettings(Strict):
    """How a measured deployment was configured; none where the source does not say.

    Attributes:
        model: name of a catalogue model.
        drafter: name of a catalogue model.
        image: as the source names it.
        vllm_version: that the image reports.
        nodes, tensor_parallel, pipeline_parallel, expert_parallel: its shape.
        executor: how ranks find each other.
        hcas: RDMA devices of each node; empty for plain Ethernet.
        draft_method, draft_tokens: speculative decoding, `none` and 0 for none.
        drafter_placement: how an image older than 0.32 was patched for an external drafter (spec/kv_cache.py).
        memory_mapped: the n-gram table stays on disk.
    """

    model: str
    drafter: str | None = None
    image: str | None = None
    vllm_version: str | None = None
    nodes: int = Field(gt=0)
    tensor_parallel: int = Field(gt=0)
    pipeline_parallel: int = Field(default=1, gt=0)
    expert_parallel: bool = False
    executor: Literal["mp", "ray", "external_launcher", "sglang"] | None = None
    hcas: tuple[str, ...] | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str | None = None
    block_size: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int | None = None
    draft_method: Literal["none", "mtp", "dflash"] | None = None
    draft_tokens: int | None = None
    drafter_placement: Literal["own-region", "shared-slots"] | None = None
    linear_state_dtype: Literal["float32", "bfloat16"] | None = None
    enforce_eager: bool | None = None
    prefix_caching: bool | None = None
    moe_backend: str | None = None
    memory_mapped: bool = False


class Measured(Strict):
    """What was measured. Keys of the dictionaries are the source's own words for what ran.

    Attributes:
        kv_cache_tokens: "GPU KV cache size".
        kv_cache_gib: of each rank, as the source rounds it; rank 0 logs it, the pool is the smallest of all.
        weights_gib: of each rank.
        weights_seconds, ready_seconds: until they are loaded, until the API is up.
        decode: tokens per second of one stream.
        prefill: tokens per second of one prompt.
        aggregate: tokens per second of several streams together.
        acceptance_percent, accepted_tokens: of the drafts.
        memory_available_percent, memory_available_gib: left on the nodes.
        fabric_gigabytes: over RDMA during the run.
        gigabits_per_second: of collectives.
        nan_found: in the outputs.
    """

    kv_cache_tokens: int | None = None
    kv_cache_gib: float | None = None
    weights_gib: float | None = None
    weights_seconds: Figure | None = None
    ready_seconds: Figure | None = None
    decode: dict[str, Figure] = {}
    prefill: dict[str, Figure] = {}
    aggregate: dict[str, Figure] = {}
    acceptance_percent: dict[str, Figure] = {}
    accepted_tokens: dict[str, Figure] = {}
    memory_available_percent: dict[str, Figure] = {}
    memory_available_gib: dict[str, Figure] = {}
    fabric_gigabytes: float | None = None
    gigabits_per_second: dict[str, Figure] = {}
    nan_found: int | None = None


class Reference(Strict):
    """One measured deployment.

    Attributes:
        outcome: `served` answered, `refused` ended with an error before serving, `died` ended while it served.
        message: what vLLM said, where it did not serve.
        settings: how it was configured.
        measured: what came out.
        inferred: settings that the source does not state, each with the reason to believe them.
        compared: with other references, in the source's words.
        verdict: what the source concludes.
    """

    outcome: Literal["served", "refused", "died"]
    message: str | None = None
    settings: ReferenceSettings
    measured: Measured = Measured()
    inferred: tuple[str, ...] = ()
    compared: dict[str, str] = {}
    verdict: str | None = None


class ReferenceFile(Strict):
    """What catalog/references/NAME.yaml holds: the figures of one source.

    Attributes:
        source: who measured, and where it stands.
        method: how.
        references: by name.
    """

    source: str
    method: str | None = None
    references: dict[str, Reference] = Field(min_length=1)
