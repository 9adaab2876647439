"""What came back: chunks with their times of arrival become tokens, texts and counts, after the clock has stopped."""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RawAnswer:
    """An answer as it arrived.

    Attributes:
        sent_seconds: when the last byte of the request was written (the generator's monotonic clock).
        chunks: time of arrival and bytes of the body.
        status: of HTTP; 0 where none came.
        error: why there is no answer, or no whole one.
    """

    sent_seconds: float
    chunks: tuple[tuple[float, bytes], ...]
    status: int
    error: str | None = None


@dataclass(frozen=True)
class Answer:
    """A streamed answer, read.

    Attributes:
        sent_seconds, first_seconds, last_seconds: when the request was sent, the first token and the last came.
        first_content_seconds: when the first token came that is not reasoning; none if there is none.
        tokens: generated, reasoning included.
        first_tokens: how many of them came with the first; drafts are accepted several at a time.
        reasoning_tokens: of these, those that are reasoning.
        prompt_tokens, cached_tokens: of the prompt, and of those from a cache; none where the server does not say.
        content, reasoning: what was said and what was thought.
    """

    sent_seconds: float
    first_seconds: float
    last_seconds: float
    first_content_seconds: float | None
    tokens: int
    first_tokens: int
    reasoning_tokens: int
    prompt_tokens: int | None
    cached_tokens: int | None
    content: str
    reasoning: str

    @property
    def time_to_first_token_seconds(self) -> float:
        """From the request to the first token."""
        return self.first_seconds - self.sent_seconds

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Tokens after the first arrival by the time that they took; none for an answer that came at once."""
        seconds = self.last_seconds - self.first_seconds
        return (self.tokens - self.first_tokens) / seconds if seconds > 0 else None


class AnswerError(Exception):
    """Raised when an answer is none; the text says what came instead."""


@dataclass(frozen=True)
class _Event:
    """One server-sent event and when its last byte arrived."""

    seconds: float
    data: dict[str, Any]


def read_answer(raw: RawAnswer) -> Answer:
    """Reads a streamed chat completion.

    Raises:
        AnswerError: the server refused, the stream broke off, or it holds no token.
    """
    if raw.error or raw.status != 200:
        body = b"".join(chunk for _, chunk in raw.chunks)[:300].decode(errors="replace")
        raise AnswerError(raw.error or f"the server answered {raw.status}: {body}")
    events = [_Event(seconds, data) for seconds, data in _events(raw.chunks)]
    failed = next((event.data["error"] for event in events if "error" in event.data), None)
    if failed:
        raise AnswerError(f"the server broke off with: {failed}")
    spoken = list(_with_tokens(events))
    if not spoken:
        raise AnswerError("the answer holds no token")
    usage = next((event.data["usage"] for event in reversed(events) if event.data.get("usage")), {})
    tokens = usage.get("completion_tokens") or len(spoken)
    first = spoken[0]
    return Answer(
        sent_seconds=raw.sent_seconds,
        first_seconds=first.seconds,
        last_seconds=spoken[-1].seconds,
        first_content_seconds=next((event.seconds for event in spoken if _text(event.data, "content")), None),
        tokens=tokens,
        first_tokens=(first.data.get("usage") or {}).get("completion_tokens") or 1,
        reasoning_tokens=_reasoning_tokens(usage, spoken),
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        content="".join(_text(event.data, "content") for event in spoken),
        reasoning="".join(_reasoning(event.data) for event in spoken),
    )


def _events(chunks: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, dict[str, Any]]]:
    rest = b""
    for seconds, chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            data = line.strip().removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                yield seconds, _parsed(data)


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        return json.loads(data)
    except ValueError:
        raise AnswerError(f"the stream holds something that is not JSON: {data[:200]!r}") from None


def _delta(data: dict[str, Any]) -> dict[str, Any]:
    choices = data.get("choices") or [{}]
    return choices[0].get("delta") or {}


def _text(data: dict[str, Any], key: str) -> str:
    return _delta(data).get(key) or ""


def _reasoning(data: dict[str, Any]) -> str:
    return _text(data, "reasoning") or _text(data, "reasoning_content")


def _with_tokens(events: Iterable[_Event]) -> Iterator[_Event]:
    """Yields the events that bring tokens: the first brings the role alone, the last the usage alone.

    A token that is half a character comes with an empty text; the running count tells, where the server gives one.
    """
    counted = 0
    for event in events:
        if not event.data.get("choices"):
            continue
        tokens = (event.data.get("usage") or {}).get("completion_tokens") or 0
        delta = _delta(event.data)
        if tokens > counted or delta.get("content") or _reasoning(event.data) or delta.get("tool_calls"):
            yield event
        counted = max(counted, tokens)


def _reasoning_tokens(usage: dict[str, Any], spoken: list[_Event]) -> int:
    """Returns what the server counts, else the tokens that came with reasoning and without content."""
    counted = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
    if counted is not None:
        return counted
    total, before = 0, 0
    for event in spoken:
        now = (event.data.get("usage") or {}).get("completion_tokens") or before + 1
        if _reasoning(event.data) and not _text(event.data, "content"):
            total += now - before
        before = now
    return total


_NUMBERLESS = ("nan", "-nan", "inf", "-inf", "infinity")
_LONGEST_RUN = 32


def text_fault(text: str) -> str | None:
    """Says what in a text is what numbers that are none leave behind; none if there is nothing.

    The largest of logits that are NaN is the first of the vocabulary, again and again: a run of one sign, mostly `!`.
    Words of a dozen signs that repeat to the end are the same for vocabularies whose first entry is longer.
    """
    words = text.lower().split()
    if len(words) >= 3 and sum(word.strip(".,!") in _NUMBERLESS for word in words) * 2 > len(words):
        return f"most words are numbers that are none: {text[:60]!r}"
    for length in range(1, 13):
        piece = text[-length:]
        if piece.strip(" -=_*#.\n\t") and len(text) >= length * _LONGEST_RUN and text.endswith(piece * _LONGEST_RUN):
            return f"it ends with {piece!r} {_LONGEST_RUN} times or more"
    if "\ufffd" in text and text.count("\ufffd") * 4 > len(text):
        return "more than a quarter of it is no text at all"
    return None


def logprob_fault(choice: dict[str, Any]) -> str | None:
    """Says which log probability of an answer is no number; none if all are, or if there are none."""
    for token in (choice.get("logprobs") or {}).get("content") or ():
        value = token["logprob"]
        if not isinstance(value, int | float) or not math.isfinite(value):
            return f"the log probability of {token['token']!r} is {value}"
    return None
