"""The load generator: sends requests at once and notes when each chunk arrives, and nothing else while it does.

Answers are read after the clock has stopped, so the generator's own work between two arrivals is a few microseconds of
bookkeeping. It says how much processor it used and how late its event loop was, since both would otherwise pass as the
server's slowness.
"""

import asyncio
import gc
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx

from ops.bench.answers import RawAnswer

_SAMPLE_SECONDS = 0.02
_LATE_SHARE = 0.99


@dataclass(frozen=True)
class Question:
    """One request: where it goes and what it asks."""

    base_url: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Load:
    """What came of some requests that ran at once.

    Attributes:
        answers: in the order of the questions.
        seconds: from the first request to the last byte.
        processor_share: of one core, that the generator used.
        late_seconds: by which its event loop was late at most in 99 of 100 samples.
    """

    answers: tuple[RawAnswer, ...]
    seconds: float
    processor_share: float
    late_seconds: float


@cache
def trusted() -> ssl.SSLContext:
    """Returns whom a client trusts; to read all those certificates anew for each load takes longer than a short one."""
    return ssl.create_default_context()


def run_load(questions: Sequence[Question], headers: dict[str, str], timeout_seconds: float) -> Load:
    """Sends all questions at once, each over a connection that is open already, and waits for all answers."""
    return asyncio.run(_run(questions, headers, timeout_seconds))


async def _run(questions: Sequence[Question], headers: dict[str, str], timeout_seconds: float) -> Load:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    # A proxy set on this machine is for the outside.
    plain = {"Accept-Encoding": "identity", **headers}
    async with httpx.AsyncClient(
        limits=limits, timeout=timeout_seconds, headers=plain, trust_env=False, verify=trusted()
    ) as client:
        await asyncio.gather(*(_open(client, question.base_url) for question in questions))
        late: list[float] = []
        sampler = asyncio.create_task(_sample_lateness(late))
        gc.disable()
        started, processor = time.monotonic(), time.process_time()
        try:
            answers = await asyncio.gather(*(_ask(client, question) for question in questions))
        finally:
            gc.enable()
            sampler.cancel()
        seconds = time.monotonic() - started
        return Load(
            tuple(answers),
            seconds,
            (time.process_time() - processor) / seconds,
            sorted(late)[int(len(late) * _LATE_SHARE)] if late else 0.0,
        )


async def _open(client: httpx.AsyncClient, base_url: str) -> None:
    """Opens a connection, which stays for the request that is measured; a failure shows there."""
    try:
        await client.get(f"{base_url}/models")
    except httpx.HTTPError:
        return


async def _ask(client: httpx.AsyncClient, question: Question) -> RawAnswer:
    sent = [time.monotonic()]

    async def note(event: str, _: dict[str, Any]) -> None:
        if event == "http11.send_request_body.complete":
            sent[0] = time.monotonic()

    chunks: list[tuple[float, bytes]] = []
    status = 0
    try:
        async with client.stream(
            "POST", f"{question.base_url}/chat/completions", json=question.body, extensions={"trace": note}
        ) as response:
            status = response.status_code
            async for chunk in response.aiter_raw():
                chunks.append((time.monotonic(), chunk))  # noqa: PERF401 - what came before a broken stream counts
    except httpx.HTTPError as error:
        return RawAnswer(sent[0], tuple(chunks), status, f"{type(error).__name__}: {error}")
    return RawAnswer(sent[0], tuple(chunks), status)


async def _sample_lateness(late: list[float]) -> None:
    while True:
        due = time.monotonic() + _SAMPLE_SECONDS
        await asyncio.sleep(_SAMPLE_SECONDS)
        late.append(time.monotonic() - due)
