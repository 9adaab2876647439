"""What each rank takes of its node's memory and what MemAvailable is left there.

On a GB10 the GPU and the host share one memory of 121.69 GiB, so that what vLLM takes is gone for the system, and
what the system takes is gone for vLLM. vLLM sizes its cache in one of two ways (`v1/worker/gpu_worker.py`):

- by utilization: KV = ceil(total x utilization) - weights - runtime, where the runtime (CUDA context, NCCL, the
  workspaces and the peak of activations) is measured in a profile run;
- pinned (`--kv-cache-memory-bytes`): KV is what was asked for, nothing is held back for the activations, and the
  utilization only decides whether the start is refused for too little free memory.

Weights are fitted to measured loads. The other parts are known as ranges only: each of them is the difference between
figures that the sources measured, and where the sources disagree the range holds all of them.
"""

import math
from typing import Annotated, Literal

from pydantic import Field

from spec.architecture import Checkpoint
from spec.arithmetic import GIB, Range, Step, ceil_div, exactly, gib, total
from spec.base import Strict

DEFAULT_UTILIZATION = 0.92
"""vLLM's `--gpu-memory-utilization` (0.32.0 and 0.33.0, facts/cli-*.json)."""


def _from_gib(low: float, high: float, source: str) -> Range:
    return Range(low=int(low * GIB), high=int(high * GIB), source=source)


class Overheads(Strict):
    """What is taken beside weights and cache, on one class of hardware.

    Attributes:
        unified: whether host and device share one memory.
        runtime: of vLLM on the device: CUDA context, NCCL, workspaces, peak of activations; eager.
        graphs: CUDA graphs as captured.
        graphs_profiled: what the profile run takes from the cache for them.
        host: the system and vLLM's processes, beyond what vLLM counts.
        api_server: what the head carries more than the others.
        before_start: what the system has taken before vLLM starts.
    """

    unified: bool
    runtime: Range
    graphs: Range
    graphs_profiled: Range
    host: Range
    api_server: Range
    before_start: Range


GB10 = Overheads(
    unified=True,
    runtime=_from_gib(
        5.0,
        6.1,
        "utilization x 121.69 - weights - KV: seed 000 Qwen TP4 0.65 x 121.69 - 33.7 - 40.4 = 5.0, Qwen TP2 "
        "0.85 x 121.69 - 64.8 - 32.6 = 6.04; eugr/spark-vllm-docker#388 TP1 0.72 x 121.69 - 73.97 - 8.22 = 5.43",
    ),
    graphs=_from_gib(6.45, 6.45, "tonyd2wild 4x CURRENT.md: 6.45 GiB for FULL_AND_PIECEWISE, the one measurement"),
    graphs_profiled=_from_gib(
        6.45,
        34.1,
        "from the captured 6.45 GiB to seed 000, where piecewise graphs left 415,766 tokens (6.34 GiB) of 40.4 GiB",
    ),
    host=_from_gib(
        13.4,
        15.8,
        "total x (1 - utilization - share left): seed 000 0.85 leaves at most 4 % (13.4), Qwen TP4 at 0.65 leaves 22 % "
        "on its emptiest node (15.8)",
    ),
    api_server=_from_gib(
        2.7,
        4.9,
        "seed 000 Qwen TP4 at rest 18 % on the fullest node against 22 % (4.9); tonyd2wild 4x head 15 GiB against 19 "
        "to 20 on workers (4 to 5); but GLM TP2 keeps 3 % on its head, which leaves 2.7 at most. The seed's head also "
        "ran a desktop session",
    ),
    before_start=_from_gib(
        4.7, 5.6, "117 GiB free after a reboot (tonyd2wild ladder), about 5 (seed 000), 5.6 (facts/peers.md 107)"
    ),
)
"""DGX Spark and its sisters, from the boots in catalog/references."""

ESTIMATE_LOW, ESTIMATE_HIGH = 0.967, 1.066
"""Weights in memory against an equal share of the files, where nobody measured them.

43.76 of 45.25 GiB (tonyd2wild's nvidia lane, whose MTP layer is not loaded) and 96.6 of 90.65 GiB (LibertAI at TP2
with its MTP head).
"""


class Profiled(Strict):
    """The cache takes what the utilization leaves."""

    kind: Literal["profiled"] = "profiled"
    gpu_memory_utilization: float = Field(gt=0, le=1)


class Pinned(Strict):
    """The cache has so many bytes on each rank; the utilization only guards the start."""

    kind: Literal["pinned"] = "pinned"
    kv_cache_memory_bytes: int = Field(gt=0)
    gpu_memory_utilization: float = Field(default=DEFAULT_UTILIZATION, gt=0, le=1)


Sizing = Annotated[Profiled | Pinned, Field(discriminator="kind")]


class RankMemory(Strict):
    """One rank's node at rest, with nothing else on it.

    Attributes:
        rank: 0 is the head.
        weights, drafter, kv_cache, runtime, graphs: vLLM on the device; none where there is no drafter or no graph.
        host, api_server: on the host; none where host and device have memories of their own, or on a worker.
        available: what is left of the node's memory (of the device's where the two are apart). Below 0, it is not
            there.
        available_share_low, available_share_high: the same as a share of the whole.
        steps: the calculation.
    """

    rank: int
    weights: Range
    drafter: Range | None
    kv_cache: Range
    runtime: Range
    graphs: Range | None
    host: Range | None
    api_server: Range | None
    available: Range
    available_share_low: float
    available_share_high: float
    steps: tuple[Step, ...]

    @property
    def is_head(self) -> bool:
        """Whether it carries the API server."""
        return self.rank == 0

    def keeps_floor(self, share: float) -> Literal["yes", "perhaps", "no"]:
        """Whether MemAvailable stays above this share of the memory: surely, within what is known, or surely not."""
        if self.available_share_low >= share:
            return "yes"
        return "perhaps" if self.available_share_high >= share else "no"


class MemoryPlan(Strict):
    """Where the memory of each node goes.

    Attributes:
        total_bytes: of one node (of one device where host and device are apart).
        sizing: how the cache was sized.
        kv_cache_bytes: of each rank; the pool is the smallest of all.
        start_check_bytes: what must be free when vLLM starts, or it refuses (`request_memory`); it holds for a pinned
            cache as well. A removed container's memory comes back late, so a supervisor must wait for it.
        start_margin: what is free beyond that on a node that runs nothing else.
        ranks: the head first.
    """

    total_bytes: int
    sizing: Sizing
    kv_cache_bytes: Range
    start_check_bytes: int
    start_margin: Range
    ranks: tuple[RankMemory, ...]

    @property
    def is_possible(self) -> bool:
        """Whether every node could have memory left and some cache, at the best that the ranges allow."""
        return self.kv_cache_bytes.high > 0 and all(rank.available.high > 0 for rank in self.ranks)


def weights_per_rank(checkpoint: Checkpoint, tensor_parallel: int, memory_mapped: bool = False) -> Range:
    """Returns what the weights of one rank take in memory.

    Args:
        checkpoint: whose weights.
        tensor_parallel: ranks that share them; with expert parallelism as well, where whole experts are shared out.
        memory_mapped: whether the part that may stay on disk does.
    """
    on_disk = checkpoint.memory_mapped_bytes if memory_mapped else 0
    if checkpoint.loaded:
        measured = checkpoint.loaded.bytes_per_rank(tensor_parallel) - ceil_div(on_disk, tensor_parallel)
        return exactly(measured, checkpoint.loaded.measured)
    share = (checkpoint.size_bytes - on_disk) / tensor_parallel
    return Range(
        low=int(share * ESTIMATE_LOW),
        high=int(share * ESTIMATE_HIGH),
        source=f"files / TP x {ESTIMATE_LOW} to {ESTIMATE_HIGH}: nobody measured this checkpoint",
    )


def drafter_per_rank(drafter: Checkpoint, tensor_parallel: int) -> Range:
    """Returns what an external drafter takes: sliced like its target, or whole."""
    return Range(
        low=ceil_div(drafter.size_bytes, tensor_parallel), high=drafter.size_bytes, source="files / TP, or the whole"
    )


def plan_memory(
    total_bytes: int,
    tensor_parallel: int,
    checkpoint: Checkpoint,
    sizing: Profiled | Pinned,
    *,
    drafter: Checkpoint | None = None,
    memory_mapped: bool = False,
    enforce_eager: bool = True,
    overheads: Overheads = GB10,
) -> MemoryPlan:
    """Shares out the memory of each node of a group, one rank a node.

    Args:
        total_bytes: what CUDA sees of one node.
        tensor_parallel: ranks.
        checkpoint: weights of the model.
        sizing: how the cache gets its size.
        drafter: weights of an external drafter.
        memory_mapped: whether the part of the weights that may stay on disk does.
        enforce_eager: no CUDA graphs.
        overheads: of the hardware.
    """
    weights = weights_per_rank(checkpoint, tensor_parallel, memory_mapped)
    draft = drafter_per_rank(drafter, tensor_parallel) if drafter else None
    requested = _requested(total_bytes, sizing.gpu_memory_utilization)
    if isinstance(sizing, Pinned):
        graphs = None if enforce_eager else overheads.graphs
        kv_cache = exactly(sizing.kv_cache_memory_bytes, "--kv-cache-memory-bytes")
        held = _held(weights, draft, overheads.runtime, graphs, kv_cache)
    else:
        graphs = None if enforce_eager else overheads.graphs_profiled
        rest = _held(weights, draft, overheads.runtime, graphs)
        kv_cache = _left(requested, rest, "ceil(total x utilization) - weights - runtime")
        held = exactly(requested, "ceil(total x utilization)") if kv_cache.high else rest
    return MemoryPlan(
        total_bytes=total_bytes,
        sizing=sizing,
        kv_cache_bytes=kv_cache,
        start_check_bytes=requested,
        start_margin=_difference(total_bytes - requested, overheads.before_start, "total - system - start check"),
        ranks=tuple(
            _rank(rank, total_bytes, held, weights, draft, kv_cache, graphs, overheads)
            for rank in range(tensor_parallel)
        ),
    )


def _requested(total_bytes: int, utilization: float) -> int:
    return math.ceil(total_bytes * utilization)  # v1/worker/utils.py request_memory, word for word


def _held(weights: Range, drafter: Range | None, *others: Range | None) -> Range:
    return total(tuple(part for part in (weights, drafter, *others) if part), "sum")


def _left(size_bytes: int, taken: Range, source: str) -> Range:
    return Range(low=max(0, size_bytes - taken.high), high=max(0, size_bytes - taken.low), source=source)


def _difference(size_bytes: int, taken: Range, source: str) -> Range:
    return Range(low=size_bytes - taken.high, high=size_bytes - taken.low, source=source)


def _rank(
    rank: int,
    total_bytes: int,
    held: Range,
    weights: Range,
    drafter: Range | None,
    kv_cache: Range,
    graphs: Range | None,
    overheads: Overheads,
) -> RankMemory:
    host = overheads.host if overheads.unified else None
    api_server = overheads.api_server if overheads.unified and rank == 0 else None
    taken = _held(held, host, api_server)
    available = _difference(total_bytes, taken, "total - vLLM - host" + (" - API server" if api_server else ""))
    return RankMemory(
        rank=rank,
        weights=weights,
        drafter=drafter,
        kv_cache=kv_cache,
        runtime=overheads.runtime,
        graphs=graphs,
        host=host,
        api_server=api_server,
        available=available,
        available_share_low=available.low / total_bytes,
        available_share_high=available.high / total_bytes,
        steps=tuple(
            Step(
                quantity=f"memory left on rank {rank}, {end} end",
                formula=available.source,
                substituted=" - ".join(gib(size) for size in (total_bytes, *parts)),
                value=left,
                unit="bytes",
            )
            for end, left, parts in (
                ("low", available.low, [part.high for part in (held, host, api_server) if part]),
                ("high", available.high, [part.low for part in (held, host, api_server) if part]),
            )
        ),
    )
