"""Rules about kernels and loaders that are known to fail on this hardware."""

from collections.abc import Iterator

from spec.architecture import Glm5Next
from spec.errors import Problem
from spec.kv_cache import DAY_ZERO
from spec.rules.rule import Estimates, warn
from spec.situation import Situation

_LOADERS = {
    "instanttensor": "is not stable over several nodes (ranks die 60 to 90 s after the load); 4.43 GiB less cache",
    "sharded_state": "loads what was already transformed and transforms it again: fluent nonsense without an error",
}


@warn
def index_selection_survives_long_contexts(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """GLM's top-k kernel on GB10 is one that survives contexts beyond 24K.

    Source: facts/vllm-patches.md 2.1 (`persistent`, which `auto` takes, crashed; `per_row` is seed 002's).
    """
    backend = situation.config.engine.other.get("sparse_indexer_topk_backend", "auto")
    if not isinstance(situation.model.architecture, Glm5Next) or situation.image.version in DAY_ZERO:
        return
    if (situation.hardware.compute_capability or "").startswith("12.") and backend in ("auto", "persistent"):
        yield situation.problem(
            "engine/other/sparse_indexer_topk_backend",
            backend,
            "the persistent kernel, which auto takes on GB10, needs 124 blocks at once where 48 fit, and ended the "
            "engine at any decode beyond about 24K tokens of context",
            "set `sparse_indexer_topk_backend: per_row`",
        )


@warn
def loader_is_proven(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """The weights are loaded by a loader that the sources trust.

    Source: seed 002, "Why it loads plain safetensors"; facts/seed-repos.md 2.1 v9 and section 6, 52; facts/peers.md 94.
    """
    loader = situation.config.engine.other.get("load_format")
    if isinstance(loader, str) and loader in _LOADERS:
        yield situation.problem(
            "engine/other/load_format",
            loader,
            f"{loader} {_LOADERS[loader]}",
            "remove the flag: safetensors is the default",
        )
