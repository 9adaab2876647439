"""How a stack is configured, in the words of the catalogue's references, so that both can be laid side by side."""

from typing import Any

from spec.deployment import DflashChoice
from spec.reference import ReferenceSettings
from spec.release import Release
from spec.situation import Situation

_ENGINE = (
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "kv_cache_dtype",
    "block_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enforce_eager",
    "moe_backend",
)


def settings_of(situation: Situation, release: Release) -> ReferenceSettings:
    """Returns the settings of a stack; a pool is described by its first group and all its nodes."""
    config = situation.config
    first = next(iter(config.groups))
    choice = config.speculative
    return ReferenceSettings(
        model=config.model,
        drafter=choice.drafter if isinstance(choice, DflashChoice) else None,
        image=release.image.reference,
        vllm_version=release.image.version,
        nodes=len(release.rank_nodes),
        tensor_parallel=situation.tensor_parallel(first),
        pipeline_parallel=config.engine.pipeline_parallel_size,
        expert_parallel=config.engine.enable_expert_parallel,
        executor=config.executor,
        hcas=_hcas(situation),
        draft_method=choice.method if choice else "none",
        draft_tokens=situation.draft_tokens,
        prefix_caching=config.engine.enable_prefix_caching is not False,
        memory_mapped=situation.image.maps_ngram_table,
        **{name: getattr(config.engine, name) for name in _ENGINE},
    )


def _hcas(situation: Situation) -> tuple[str, ...]:
    fabric = situation.config.fabric
    if fabric.kind != "roce":
        return ()
    head = next(iter(situation.config.groups.values()))[0]
    rails = situation.cluster.nodes[head].rails
    return tuple(hca for hca in (rails[position].hca for position in fabric.rails) if hca)


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Says what differs between two settings, leaving out what one side does not state.

    Args:
        ours: as `ReferenceSettings` writes it as JSON.
        theirs: the same.
    """
    return [
        f"{name}: {_shown(value)} against {_shown(theirs[name])}"
        for name, value in ours.items()
        if value is not None and theirs.get(name) is not None and value != theirs[name]
    ]


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000 else str(value)
