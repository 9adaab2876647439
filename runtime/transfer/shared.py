"""What several threads use, and the last one gives up."""

import threading
from abc import ABC, abstractmethod


class Shared(ABC):
    """Counts its users, of which it has one at first."""

    def __init__(self) -> None:
        self._users = 1
        self._lock = threading.Lock()

    def share(self) -> None:
        """Adds a user."""
        with self._lock:
            self._users += 1

    def release(self) -> None:
        """Takes a user away."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
        self._give_up()

    @abstractmethod
    def _give_up(self) -> None:
        """Called after the last user."""
