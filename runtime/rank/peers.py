"""Asks every peer again and again and keeps what each said last."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.rank.agreement import Sight
from runtime.rank.exchange import ExchangeError, Traffic, ask_status
from runtime.rank.request import Peer
from runtime.rank.status import Status

_ASK_SECONDS = 0.5
_ANSWER_SECONDS = 1.5


@dataclass
class _Memory:
    """What one peer's thread knows."""

    first_asked: float
    status: Status | None = None
    answered: float | None = None
    trouble: str | None = None
    refused_since: float | None = None
    skew_seconds: float = 0.0


class Peers:
    """The peers of a rank, each asked by a thread of its own so that a silent one delays nobody."""

    def __init__(self, own: Peer, others: Sequence[Peer], key: bytes, traffic: Traffic) -> None:
        """Starts asking."""
        self._own, self._others, self._key, self._traffic = own, tuple(others), key, traffic
        now = time.monotonic()
        self._known = {peer.rank: _Memory(now) for peer in self._others}
        for peer in self._others:
            threading.Thread(target=self._follow, args=(peer,), name=f"peer-{peer.rank}", daemon=True).start()

    def sights(self) -> dict[int, Sight]:
        """Returns what is known of every peer now."""
        now = time.monotonic()
        return {rank: _sight(memory, now) for rank, memory in self._known.items()}

    def _follow(self, peer: Peer) -> None:
        while True:
            started = time.monotonic()
            self._known[peer.rank] = self._asked(peer, self._known[peer.rank])
            time.sleep(max(0.05, _ASK_SECONDS - (time.monotonic() - started)))

    def _asked(self, peer: Peer, before: _Memory) -> _Memory:
        """Returns what is known after one question; readers see either the old or the new knowledge, whole."""
        sent = time.time()
        try:
            status = Status.from_plain(
                ask_status(self._key, peer.address, peer.port, self._own.address, _ANSWER_SECONDS, self._traffic)
            )
        except ExchangeError as error:
            now = time.monotonic()
            refused_since = (before.refused_since or now) if error.refused else None
            return _Memory(
                before.first_asked, before.status, before.answered, str(error), refused_since, before.skew_seconds
            )
        except (KeyError, TypeError, ValueError) as error:
            trouble = f"its status is of another version of the runtime ({error})"
            return _Memory(before.first_asked, None, before.answered, trouble)
        skew = status.clock_seconds - (sent + time.time()) / 2
        return _Memory(before.first_asked, status, time.monotonic(), None, None, skew)


def _sight(memory: _Memory, now: float) -> Sight:
    since = memory.answered if memory.answered is not None else memory.first_asked
    return Sight(
        status=memory.status,
        age_seconds=now - since,
        trouble=memory.trouble,
        refused_seconds=now - memory.refused_since if memory.refused_since is not None else 0.0,
        skew_seconds=memory.skew_seconds,
    )
