"""A steady load on an endpoint: every request is remembered with when it began and how it ended."""

import threading
import time
from dataclasses import dataclass, field
from types import TracebackType

import httpx

QUESTION = "What is 17 x 23?"
RIGHT = "17 x 23 = 391"


@dataclass(frozen=True)
class Asked:
    """One request: when it began and ended, by the monotonic clock, and what was wrong with it."""

    began: float
    ended: float
    trouble: str | None


@dataclass
class SteadyLoad:
    """Clients that ask one question after the other, each on a connection of its own, until the block ends."""

    url: str
    clients: int = 3
    asked: list[Asked] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> "SteadyLoad":
        self._threads = [threading.Thread(target=self._ask_on, daemon=True) for _ in range(self.clients)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)

    @property
    def troubles(self) -> list[str]:
        """What went wrong, of all requests."""
        return [one.trouble for one in self.asked if one.trouble]

    def troubles_of_those_begun_after(self, moment: float) -> list[str]:
        return [one.trouble for one in self.asked if one.trouble and one.began > moment]

    def _ask_on(self) -> None:
        body = {"model": "lab", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 64}
        while not self._ended.is_set():
            began = time.monotonic()
            trouble = None
            try:
                response = httpx.post(f"{self.url}/chat/completions", json=body, timeout=60, trust_env=False)
                text = response.raise_for_status().json()["choices"][0]["message"]["content"]
                trouble = None if text.strip() == RIGHT else f"wrong answer: {text!r}"
            except (httpx.HTTPError, KeyError, ValueError) as error:
                trouble = f"{error!r}"
            self.asked.append(Asked(began, time.monotonic(), trouble))
            self._ended.wait(0.05)
