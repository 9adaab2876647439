"""The memory guard: kills the engine at once when the host runs out of memory.

On a GB10 the engine and the host share one memory, and a prefill has taken 29 to 2.5 GiB in nine seconds
(facts/seed-repos.md section 2): who waits for the kernel's OOM killer loses sshd. The guard is a thread that was made
before the engine, looks several times a second, reads one open file into one buffer and kills with one call.
"""

import ctypes
import os
import resource
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from runtime.rank.meminfo import MemoryFigures
from runtime.rank.request import GuardLimits

LOOK_SECONDS = 0.25
_LOOKS_A_SECOND = 4
_KEPT_LOOKS = 40
_MIB = 1 << 20
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_THREAD_STACK_BYTES = 256 << 10


@dataclass(frozen=True)
class Trip:
    """Why the guard killed.

    Attributes:
        available_bytes: MemAvailable when it did.
        floor_bytes: what must be left.
        total_bytes: MemTotal.
        bytes_per_second: how fast it changed over the last seconds; negative when it fell.
        by_trend: whether the trend decided and not the floor.
    """

    available_bytes: int
    floor_bytes: int
    total_bytes: int
    bytes_per_second: float
    by_trend: bool

    def __str__(self) -> str:
        share = 100 * self.available_bytes / self.total_bytes
        trend = f"{self.bytes_per_second / _MIB:+.0f} MiB/s"
        limit = "the trend leads below the backstop before the next look" if self.by_trend else "below the floor"
        return (
            f"MemAvailable {self.available_bytes // _MIB} MiB ({share:.1f} %), {trend}: {limit}; the floor is "
            f"{self.floor_bytes // _MIB} MiB ({100 * self.floor_bytes / self.total_bytes:.1f} %) of "
            f"{self.total_bytes // _MIB} MiB. The engine was killed to save the host"
        )


class MemoryGuard:
    """Watches MemAvailable from its making on; kills only while it is armed."""

    def __init__(self, limits: GuardLimits, kill: Callable[[], None], path: str | None = None) -> None:
        """Starts the thread.

        Args:
            limits: when to kill.
            kill: ends the engine; must need no memory.
            path: instead of /proc/meminfo.
        """
        self._figures = MemoryFigures(path) if path else MemoryFigures()
        self.total_bytes = self._figures.read_bytes(b"MemTotal:")
        self.floor_bytes = int(self.total_bytes * limits.floor_percent / 100)
        self._backstop_bytes = int(self.total_bytes * limits.backstop_percent / 100)
        self._kill = kill
        self._armed = False
        self.trip: Trip | None = None
        self.available_bytes = self._figures.read_bytes(b"MemAvailable:")
        self._looks = [(time.monotonic(), self.available_bytes)] * _KEPT_LOOKS
        self._next = 0
        self._thread = threading.Thread(target=self._watch, name="memory-guard", daemon=True)
        self._thread.start()

    def arm(self) -> None:
        """An engine runs from now on."""
        self.trip = None
        self._armed = True

    def disarm(self) -> None:
        """No engine runs any more."""
        self._armed = False

    @property
    def is_awake(self) -> bool:
        """Whether it still watches; without it no engine may run."""
        return self._thread.is_alive()

    @property
    def bytes_per_second(self) -> float:
        """How fast MemAvailable changes, over the last ten seconds."""
        (then, before), (now, after) = self._looks[self._next], self._looks[self._next - 1]
        return (after - before) / (now - then) if now > then else 0.0

    def figures(self) -> dict[str, float]:
        """Returns what people see of the memory; the time to the floor only while it falls towards it."""
        trend = self.bytes_per_second
        above = self.available_bytes - self.floor_bytes
        return {
            "available_bytes": self.available_bytes,
            "floor_bytes": self.floor_bytes,
            "total_bytes": self.total_bytes,
            "bytes_per_second": int(trend),
            **({"seconds_to_floor": round(above / -trend, 1)} if trend < -_MIB and above > 0 else {}),
        }

    def _watch(self) -> None:
        while True:
            available = self._figures.read_bytes(b"MemAvailable:")
            self.available_bytes = available
            self._looks[self._next] = (time.monotonic(), available)
            self._next = (self._next + 1) % _KEPT_LOOKS
            if self._armed and self.trip is None:
                below = available < self.floor_bytes
                if below or available + self._change_until_next_look() < self._backstop_bytes:
                    self._kill()
                    trend = self.bytes_per_second
                    self.trip = Trip(available, self.floor_bytes, self.total_bytes, trend, not below)
            elif self.trip is not None and self._armed:
                self._kill()  # whatever was being started while the first kill went out
            time.sleep(LOOK_SECONDS)

    def _change_until_next_look(self) -> float:
        """Returns how much MemAvailable falls until then if it goes on as in the last second."""
        (then, before), (now, after) = self._looks[self._next - 1 - _LOOKS_A_SECOND], self._looks[self._next - 1]
        return min(0.0, (after - before) / (now - then) * LOOK_SECONDS) if now > then else 0.0


def keep_runnable() -> tuple[str, ...]:
    """Locks this process's memory and asks the OOM killer to spare it.

    Returns:
        What the system refused, for people; the guard works without, only less surely.
    """
    threading.stack_size(_THREAD_STACK_BYTES)
    refused = []
    library = ctypes.CDLL(None, use_errno=True)
    # With a limit, memory that is asked for later would be refused as soon as the limit is reached.
    unlimited = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY
    if library.mlockall(_MCL_CURRENT | _MCL_ONFAULT | (_MCL_FUTURE if unlimited else 0)):
        refused.append(f"its memory is not locked: {os.strerror(ctypes.get_errno())} (limits/locked_memory_bytes)")
    for score in (-1000, -500, 0):
        try:
            with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - one call
                file.write(str(score))
        except OSError:
            continue
        if score == 0:
            refused.append("the OOM killer may take it like any other process: CAP_SYS_RESOURCE is not there")
        break
    return tuple(refused)
