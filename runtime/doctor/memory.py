"""Checks of memory: who else may end a rank, and what the kernel keeps back."""

import os
from collections.abc import Iterator

from runtime.doctor.look import Found, Look

_EARLYOOM_DEFAULT_PERCENT = 10.0
_EARLYOOM_HARMLESS_PERCENT = 5.0
_MIN_FREE_SHARE = 0.01
_MIB = 1 << 20


def earlyoom(look: Look) -> Iterator[Found]:
    """Earlyoom must be off, or have a floor far below the deployment's."""
    for number, words in look.processes("earlyoom"):
        percent = _earlyoom_percent(words)
        if percent is None or percent >= _EARLYOOM_HARMLESS_PERCENT:
            floor = f"{percent:g} % of memory" if percent is not None else "a floor in KiB"
            yield Found("earlyoom-runs", f"process {number}: {' '.join(words)}: {floor}", {"process": number})


def _earlyoom_percent(words: list[str]) -> float | None:
    if any(word.startswith("-M") for word in words):
        return None
    for position, word in enumerate(words):
        if word.startswith("-m"):
            value = word[2:] or (words[position + 1] if position + 1 < len(words) else "")
            return float(value.partition(",")[0]) if value else _EARLYOOM_DEFAULT_PERCENT
    return _EARLYOOM_DEFAULT_PERCENT


def swap(look: Look) -> Iterator[Found]:
    """With swap, swappiness must be 0; a node with a GPU needs some swap while weights are repacked."""
    total = look.meminfo_bytes("SwapTotal")
    swappiness = int(look.needed("/proc/sys/vm/swappiness"))
    if total and swappiness:
        read = f"vm.swappiness is {swappiness}, swap has {total // _MIB:,} MiB"
        yield Found("swappiness-not-zero", read, {"swappiness": swappiness})
    if not total and look.request["gpus"]:
        yield Found("no-swap", "SwapTotal is 0", {})


def min_free(look: Look) -> Iterator[Found]:
    """The kernel must not keep so much back that the engine's own check of free memory fails."""
    kept = int(look.needed("/proc/sys/vm/min_free_kbytes")) * 1024
    total = look.meminfo_bytes("MemTotal")
    if kept > total * _MIN_FREE_SHARE:
        read = f"vm.min_free_kbytes is {kept // 1024:,}: {100 * kept / total:.1f} % of {total // _MIB:,} MiB"
        yield Found("min-free-raised", read, {"most_kbytes": int(total * _MIN_FREE_SHARE) // 1024})


def shared_memory(look: Look) -> Iterator[Found]:
    """/dev/shm must hold the engine's message queues."""
    status = os.statvfs(look.root / "dev/shm")
    size, needed = status.f_blocks * status.f_frsize, look.request["shared_memory_bytes"]
    if size < needed:
        read = f"/dev/shm has {size // _MIB} MiB of {needed // _MIB}"
        yield Found("shared-memory-small", read, {"needed_mib": needed // _MIB})
