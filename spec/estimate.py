"""What the planner says of one group: its KV cache and the memory that is left on every node."""

from spec.architecture import Dflash2
from spec.kv_cache import CacheSettings, KvCachePlan, plan_kv_cache
from spec.memory import DEFAULT_UTILIZATION, MemoryPlan, Pinned, Profiled, plan_memory
from spec.situation import Situation


def estimate_memory(situation: Situation, group: str) -> MemoryPlan | None:
    """Returns where each node's memory goes; none where nobody measured this kind of machine."""
    checkpoint, engine = situation.model.checkpoint, situation.config.engine
    if checkpoint is None or not situation.hardware.unified or situation.image.engine != "vllm":
        return None
    utilization = engine.gpu_memory_utilization or DEFAULT_UTILIZATION
    return plan_memory(
        situation.hardware.memory_bytes,
        situation.world_size(group),
        checkpoint,
        Pinned(kv_cache_memory_bytes=engine.kv_cache_memory_bytes, gpu_memory_utilization=utilization)
        if engine.kv_cache_memory_bytes
        else Profiled(gpu_memory_utilization=utilization),
        drafter=situation.drafter.checkpoint if situation.drafter else None,
        memory_mapped=situation.image.maps_ngram_table,
        enforce_eager=engine.enforce_eager,
    )


def estimate_kv_cache(situation: Situation, group: str, kv_cache_bytes: int) -> KvCachePlan:
    """Counts what a cache of so many bytes on each rank holds.

    Raises:
        PlanningError: vLLM could not arrange this cache, or its rules are not known.
    """
    engine = situation.config.engine
    drafter = situation.drafter.architecture if situation.drafter else None
    return plan_kv_cache(
        situation.model.architecture,
        CacheSettings(
            vllm_version=situation.image.version,
            tensor_parallel=situation.tensor_parallel(group),
            kv_cache_bytes=kv_cache_bytes,
            max_model_len=engine.max_model_len,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            kv_cache_dtype=engine.kv_cache_dtype or "auto",
            draft_tokens=situation.draft_tokens,
            block_size=engine.block_size,
            prefix_caching=engine.enable_prefix_caching is not False,
            drafter_placement=situation.image.drafter_placement,
            default_block_size=16 if situation.hardware.gpus else 128,
        ),
        drafter if isinstance(drafter, Dflash2) else None,
    )
