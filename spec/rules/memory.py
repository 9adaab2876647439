"""Rules about memory: what fits, what the host keeps, and whether the engine can start at all."""

import math
from collections.abc import Iterator

from spec.arithmetic import ceil_div
from spec.errors import Problem
from spec.memory import DEFAULT_UTILIZATION, GB10, MemoryPlan, Pinned, RankMemory
from spec.rules.parallel import divides
from spec.rules.rule import Estimate, Estimates, refuse, warn
from spec.rules.words import mib, subtraction
from spec.situation import Situation

MOST_UTILIZATION = 0.85
"""What must not be reached on unified memory: seed 000, "never 0.85"."""

EARLYOOM_PERCENT = 10
"""MemAvailable below which earlyoom ends the largest process, by its default."""

_ON_THE_DEVICE = ("weights", "drafter", "runtime", "graphs", "pinned cache")

ROUNDING = 0.005
"""Shares that the ranges were made from are whole percents, so half a percent decides nothing."""


@refuse
def memory_holds_the_weights(situation: Situation, estimates: Estimates) -> Iterator[Problem]:
    """Each node can hold its share of the weights, the runtime, the system and some cache.

    Source: seed 002, "Why NVFP4" (BF16 299 GiB and FP8 153 GiB a node at TP2, of 121.6).
    """
    for group, memory in _memory_plans(estimates):
        if not memory.is_possible:
            yield situation.problem(
                f"groups/{group}",
                list(situation.config.groups[group]),
                _why_impossible(situation, memory),
                _way_to_more_room(situation, memory),
            )


@refuse
def utilization_leaves_the_host_its_room(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """The engine takes less than 0.85 of a memory that it shares with the host.

    Source: seed 000, "--gpu-memory-utilization 0.85 leaves 1 to 4 percent MemAvailable", "never 0.85".
    """
    chosen = _chosen_share(situation)
    if chosen is None or chosen[2] < MOST_UTILIZATION:
        return
    key, value, share = chosen
    total = situation.hardware.memory_bytes
    low, high = GB10.host.low + GB10.api_server.low, GB10.host.high + GB10.api_server.high
    shown = f"{share}{'' if value else ' (the default)'}"
    yield situation.problem(
        key,
        value,
        f"{shown} leaves {mib(total)} x (1 - {share}) = {mib(round(total * (1 - share)))} to the system, which takes "
        f"{mib(low)} to {mib(high)} on the head; each 0.01 is {mib(total // 100)}",
        f"stay below {MOST_UTILIZATION}: seed 000 serves TP4 with 0.65 and a single node with 0.72 to 0.75; or pin "
        "the cache with kv_cache_memory_bytes",
    )


@refuse
def memory_floor_is_kept(situation: Situation, estimates: Estimates) -> Iterator[Problem]:
    """MemAvailable can stay above the memory floor, or the guard would stop the rank that just started.

    Source: seed 000, the guard of 12 percent and the run at 0.72 that it ended; design.md guarantee 8.
    """
    floor = situation.config.memory.floor_percent / 100
    for group, memory, rank in _tightest_ranks(estimates):
        if rank.keeps_floor(floor - ROUNDING) == "no":
            yield _floor_problem(situation, group, memory, rank, "at best", rank.available.high)


@warn
def memory_floor_is_kept_surely(situation: Situation, estimates: Estimates) -> Iterator[Problem]:
    """MemAvailable stays above the memory floor by everything that is known.

    Source: seed 000, the guard of 12 percent; the ranges are those of spec/memory.py.
    """
    floor = situation.config.memory.floor_percent / 100
    for group, memory, rank in _tightest_ranks(estimates):
        if rank.keeps_floor(floor - ROUNDING) != "no" and rank.keeps_floor(floor) != "yes":
            yield _floor_problem(situation, group, memory, rank, "at worst", rank.available.low)


@warn
def memory_floor_lies_above_earlyoom(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """The memory floor is not below the one at which earlyoom ends the engine without a word.

    Source: seed 000, earlyoom's 10 percent killed the worker with no traceback; "that we would not leave unattended".
    """
    percent = situation.config.memory.floor_percent
    total = situation.hardware.memory_bytes
    if percent < EARLYOOM_PERCENT and _shares_its_memory(situation):
        yield situation.problem(
            "memory/floor_percent",
            percent,
            f"{percent:g} % of {mib(total)} are {mib(round(total * percent / 100))}, and earlyoom, where it is "
            f"installed, ends the engine below {EARLYOOM_PERCENT} % ({mib(total * EARLYOOM_PERCENT // 100)}) with no "
            "traceback",
            "raise it to 12 and give the engine less; or acknowledge that nobody leaves these nodes unattended",
        )


@refuse
def cache_holds_one_request(situation: Situation, estimates: Estimates) -> Iterator[Problem]:
    """The KV cache holds one request of the longest context, or vLLM does not start.

    Source: facts/vllm-patches.md 6.3; vLLM `_check_enough_kv_cache_memory`.
    """
    for group, estimate in _planned_caches(estimates):
        if _most_cache_bytes(estimate) < _least_cache_bytes(estimate):
            yield _cache_problem(situation, group, estimate, _most_cache_bytes(estimate), "at most ")


@warn
def cache_holds_one_request_surely(situation: Situation, estimates: Estimates) -> Iterator[Problem]:
    """The KV cache holds one request of the longest context at the low end of what the utilization leaves.

    Source: facts/vllm-patches.md 6.3; the ranges are those of spec/memory.py.
    """
    for group, estimate in _planned_caches(estimates):
        planned = estimate.kv_cache.kv_cache_bytes if estimate.kv_cache else 0
        if planned < _least_cache_bytes(estimate) <= _most_cache_bytes(estimate):
            yield _cache_problem(situation, group, estimate, planned, "perhaps only ")


@warn
def start_check_covers_a_pinned_cache(situation: Situation, estimates: Estimates) -> Iterator[Problem]:
    """The start check beside a pinned cache demands at least what the rank takes.

    Source: facts/seed-repos.md 3.4; design.md section 5 (a removed container's memory comes back late).
    """
    for group, memory in _memory_plans(estimates):
        taken = [(name, size) for name, size in _least_parts(memory, memory.ranks[0]) if name in _ON_THE_DEVICE]
        least = sum(size for _, size in taken)
        if isinstance(memory.sizing, Pinned) and memory.is_possible and memory.start_check_bytes < least:
            parts = " + ".join(f"{mib(size)} ({name})" for name, size in taken)
            yield situation.problem(
                "engine/gpu_memory_utilization",
                situation.config.engine.gpu_memory_utilization,
                f"vLLM starts with {mib(memory.total_bytes)} x {memory.sizing.gpu_memory_utilization} = "
                f"{mib(memory.start_check_bytes)} free, and a rank of the group {group} takes {parts} = "
                f"{mib(least)}: {mib(least - memory.start_check_bytes)} more",
                f"raise it to {math.ceil(100 * least / memory.total_bytes) / 100}, so that such a start fails at once",
            )


@refuse
def start_check_can_pass(situation: Situation, estimates: Estimates) -> Iterator[Problem]:
    """What vLLM demands to be free at its start is there on an idle node.

    Source: facts/peers.md 107 (utilization 0.86, 5.6 GiB on the host's side not counted); vLLM `request_memory`.
    """
    for group, memory in _memory_plans(estimates):
        if memory.start_margin.high < 0:
            yield _start_problem(situation, group, memory, memory.start_margin.high)


@warn
def start_check_passes_surely(situation: Situation, estimates: Estimates) -> Iterator[Problem]:
    """What vLLM demands to be free at its start is there by everything that is known.

    Source: facts/peers.md 107; facts/seed-repos.md section 6, 43 (98.89 of 102.22 GiB free: refused).
    """
    for group, memory in _memory_plans(estimates):
        if memory.start_margin.low < 0 <= memory.start_margin.high:
            yield _start_problem(situation, group, memory, memory.start_margin.low)


@refuse
def required_memory_exists(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """What preflight asks to be free is less than what a node has.

    Source: design.md guarantee 2; facts/seed-repos.md section 6, 43.
    """
    required, total = situation.config.memory.required_bytes, situation.hardware.memory_bytes
    if required and required >= total:
        yield situation.problem(
            "memory/required_bytes",
            required,
            f"{mib(required)} can never be free on a node of {mib(total)}",
            "ask for less, or remove the key: the plan then says what is needed",
        )


@warn
def required_memory_covers_the_start_check(situation: Situation, estimates: Estimates) -> Iterator[Problem]:
    """What preflight asks to be free is at least what vLLM demands at its start.

    Source: vLLM `request_memory`; design.md guarantee 2 (nothing is stopped before the new group can start).
    """
    required = situation.config.memory.required_bytes
    for group, memory in _memory_plans(estimates):
        if required and required < memory.start_check_bytes:
            yield situation.problem(
                "memory/required_bytes",
                required,
                f"preflight would pass the group {group} with {mib(required)} free, and vLLM refuses to start with "
                f"less than {mib(memory.start_check_bytes)}: {mib(memory.start_check_bytes - required)} short",
                "remove the key: the plan takes what vLLM demands; or lower gpu_memory_utilization",
            )


def _memory_plans(estimates: Estimates) -> Iterator[tuple[str, MemoryPlan]]:
    return ((group, estimate.memory) for group, estimate in estimates.items() if estimate.memory)


def _tightest_ranks(estimates: Estimates) -> Iterator[tuple[str, MemoryPlan, RankMemory]]:
    """Returns the rank of each group that has least left; none where the weights do not fit anyway."""
    for group, memory in _memory_plans(estimates):
        if memory.is_possible:
            yield group, memory, min(memory.ranks, key=lambda rank: rank.available.low)


def _planned_caches(estimates: Estimates) -> Iterator[tuple[str, Estimate]]:
    for group, estimate in estimates.items():
        if estimate.kv_cache and (estimate.memory is None or estimate.memory.is_possible):
            yield group, estimate


def _least_cache_bytes(estimate: Estimate) -> int:
    return estimate.kv_cache.least_bytes if estimate.kv_cache else 0


def _most_cache_bytes(estimate: Estimate) -> int:
    if estimate.memory:
        return estimate.memory.kv_cache_bytes.high
    return estimate.kv_cache.kv_cache_bytes if estimate.kv_cache else 0


def _shares_its_memory(situation: Situation) -> bool:
    return situation.hardware.unified and situation.hardware.gpus > 0


def _chosen_share(situation: Situation) -> tuple[str, object, float] | None:
    """Returns key, value and share of what sizes the engine on unified memory; none where nothing does."""
    engine = situation.config.engine
    if not _shares_its_memory(situation) or engine.kv_cache_memory_bytes:
        return None
    if situation.image.engine == "sglang":
        fraction = engine.other.get("mem_fraction_static")
        return ("engine/other/mem_fraction_static", fraction, fraction) if isinstance(fraction, float) else None
    value = engine.gpu_memory_utilization
    return "engine/gpu_memory_utilization", value, value or DEFAULT_UTILIZATION


def _least_parts(memory: MemoryPlan, rank: RankMemory) -> list[tuple[str, int]]:
    parts = (("weights", rank.weights), ("drafter", rank.drafter), ("runtime", rank.runtime), ("graphs", rank.graphs))
    pinned = rank.kv_cache if isinstance(memory.sizing, Pinned) else None
    rest = (("pinned cache", pinned), ("host", rank.host), ("API server", rank.api_server))
    return [(name, part.low) for name, part in (*parts, *rest) if part]


def _why_impossible(situation: Situation, memory: MemoryPlan) -> str:
    rank = memory.ranks[0]
    ranks = len(memory.ranks)
    if rank.available.high <= 0:
        taken = _least_parts(memory, rank)
        left = memory.total_bytes - sum(size for _, size in taken)
        return (
            f"{situation.config.model} over {ranks} node(s) does not fit, even if each part is as small as it can be: "
            + subtraction(memory.total_bytes, taken, left)
        )
    taken = [part for part in _least_parts(memory, rank) if part[0] in _ON_THE_DEVICE]
    left = memory.start_check_bytes - sum(size for _, size in taken)
    share = memory.sizing.gpu_memory_utilization
    return f"{share} of {mib(memory.total_bytes)} leaves no KV cache on {ranks} node(s): " + subtraction(
        memory.start_check_bytes, taken, left
    )


def _way_to_more_room(situation: Situation, memory: MemoryPlan) -> str:
    rank, checkpoint = memory.ranks[0], situation.model.checkpoint
    if rank.available.high > 0:
        return "raise gpu_memory_utilization as far as the memory floor allows, or use more nodes"
    beside = sum(size for name, size in _least_parts(memory, rank) if name != "weights")
    weights = rank.weights.low * len(memory.ranks)
    room = memory.total_bytes - beside
    needed = f"use {_next_number_of_nodes(situation, ceil_div(weights, room))} nodes" if room > 0 else "pin less cache"
    mapped = checkpoint.memory_mapped_bytes if checkpoint and not situation.image.maps_ngram_table else 0
    on_disk = f", an image that keeps the n-gram table ({mib(mapped)}) on disk" if mapped else ""
    return f"{needed}{on_disk}, or a smaller checkpoint"


def _next_number_of_nodes(situation: Situation, least: int) -> int:
    """Returns the first number that also divides the model."""
    return next((nodes for nodes in range(least, least + 64) if divides(situation, nodes)), least)


def _floor_problem(
    situation: Situation, group: str, memory: MemoryPlan, rank: RankMemory, end: str, left: int
) -> Problem:
    percent = situation.config.memory.floor_percent
    floor = round(memory.total_bytes * percent / 100)
    host, api_server = (
        (part.low if end == "at best" else part.high) if part else 0 for part in (rank.host, rank.api_server)
    )
    engine = memory.total_bytes - left - host - api_server
    parts = (("engine", engine), ("host", host), ("API server", api_server))
    pinned = situation.config.engine.kv_cache_memory_bytes
    return situation.problem(
        "engine/kv_cache_memory_bytes" if pinned else "engine/gpu_memory_utilization",
        pinned or situation.config.engine.gpu_memory_utilization,
        f"rank {rank.rank} of the group {group} has {end} {subtraction(memory.total_bytes, parts, left)} left "
        f"({100 * left / memory.total_bytes:.1f} %), and the floor is {percent:g} % = {mib(floor)}: "
        f"{mib(floor - left)} short",
        _way_above_the_floor(memory, rank, floor),
    )


def _way_above_the_floor(memory: MemoryPlan, rank: RankMemory, floor: int) -> str:
    lower = "or lower memory/floor_percent and accept what that risks"
    if isinstance(memory.sizing, Pinned):
        cache = memory.sizing.kv_cache_memory_bytes - (floor - rank.available.low)
        return f"pin at most {mib(cache)}, {lower}" if cache > 0 else f"use more nodes, {lower}"
    system = floor + sum(part.high for part in (rank.host, rank.api_server) if part)
    share = math.floor(100 * (memory.total_bytes - system) / memory.total_bytes) / 100
    return f"gpu_memory_utilization {share} keeps the floor surely; {lower}"


def _cache_problem(situation: Situation, group: str, estimate: Estimate, held: int, how: str) -> Problem:
    cache = estimate.kv_cache
    assert cache is not None
    pinned = situation.config.engine.kv_cache_memory_bytes
    return situation.problem(
        "engine/kv_cache_memory_bytes" if pinned else "engine/gpu_memory_utilization",
        pinned or situation.config.engine.gpu_memory_utilization,
        f"one request of {cache.max_model_len:,} tokens takes ({cache.blocks_per_request} + 1) blocks x "
        f"{cache.bytes_per_block:,} B = {mib(cache.least_bytes)}, and each rank of the group {group} has {how}"
        f"{mib(held)}: {mib(cache.least_bytes - held)} short",
        f"give the cache {cache.least_bytes:,} bytes or more, or lower max_model_len",
    )


def _start_problem(situation: Situation, group: str, memory: MemoryPlan, margin: int) -> Problem:
    system = memory.total_bytes - memory.start_check_bytes - margin
    share = memory.sizing.gpu_memory_utilization
    idle = f"{mib(memory.total_bytes)} - {mib(system)} (system) = {mib(memory.total_bytes - system)}"
    return situation.problem(
        "engine/gpu_memory_utilization",
        situation.config.engine.gpu_memory_utilization,
        f"vLLM starts in the group {group} only with {mib(memory.total_bytes)} x {share} = "
        f"{mib(memory.start_check_bytes)} free, and an idle node has {idle}",
        f"set gpu_memory_utilization to {_passing_utilization(memory)} or less",
    )


def _passing_utilization(memory: MemoryPlan) -> float:
    free = memory.start_check_bytes + memory.start_margin.low
    return math.floor(100 * free / memory.total_bytes) / 100
