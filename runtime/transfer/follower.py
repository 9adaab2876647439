"""A thread that works off a queue in order, and never leaves whoever fills the queue waiting."""

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Follower(Generic[Item]):
    """Calls `work` with each item; after a failure it tells once and gives the other items to `leave`."""

    def __init__(
        self,
        work: Callable[[Item], None],
        leave: Callable[[Item], None],
        on_failure: Callable[[Exception], None],
        lead: int,
    ) -> None:
        self._work = work
        self._leave = leave
        self._on_failure = on_failure
        self._waiting: queue.Queue[Item | None] = queue.Queue(lead)
        self._failed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, item: Item) -> None:
        """Adds an item; waits while the thread is too far behind."""
        self._waiting.put(item)

    def finish(self) -> None:
        """Waits until all items are worked off."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            if self._failed:
                self._leave(item)
                continue
            try:
                self._work(item)
            except Exception as error:  # noqa: BLE001 - whatever it is, the transfer must hear of it
                self._failed = True
                self._on_failure(error)
