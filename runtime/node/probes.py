"""Asks a head until it answers right: health, the known answers, numbers that are numbers."""

import json
import math
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from runtime.node.errors import NodeTaskError
from runtime.node.progress import tell

_POLL_SECONDS = 0.5
# A proxy set on the node is for the outside; the head is on the node itself.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """Waits for `/health`, then asks every question once at temperature 0.

    Args:
        request: `port`, `served_name`, `probes` (`prompt`, `answer`, `match`, `tokens`), `api_key_file` (none, or
            one that need not exist), `start_timeout_seconds`, `answer_timeout_seconds`.

    Raises:
        NodeTaskError: not healthy in time, no answer, a wrong answer, or a number that is none.
    """
    started = time.monotonic()
    base = f"http://127.0.0.1:{request['port']}"
    _wait_for_health(base, request["start_timeout_seconds"])
    tell(f"healthy after {time.monotonic() - started:.0f} s; asking {len(request['probes'])} questions")
    key = _api_key(request.get("api_key_file"))
    for question in request["probes"]:
        answer = ask(base, request["served_name"], question, request["answer_timeout_seconds"], key)
        check_answer(question, answer)
        tell(f"{question['prompt']!r} is answered right")
    return {"answered": len(request["probes"])}


def ask(
    base: str, served_name: str, question: dict[str, Any], timeout_seconds: float, api_key: str | None = None
) -> dict[str, Any]:
    """Returns the first choice that the chat endpoint gives to one question.

    Raises:
        NodeTaskError: the server did not answer, or with something that is no answer.
    """
    body = {
        "model": served_name,
        "messages": [{"role": "user", "content": question["prompt"]}],
        "temperature": 0,
        "max_tokens": question["tokens"],
        "logprobs": True,
    }
    authorization = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    request = urllib.request.Request(
        f"{base}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json", **authorization}
    )
    try:
        with _OPENER.open(request, timeout=timeout_seconds) as response:
            return json.load(response)["choices"][0]
    except urllib.error.HTTPError as error:
        raise NodeTaskError(
            f"{question['prompt']!r}: the server answered {error.code}: {error.read()[:500]!r}"
        ) from None
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise NodeTaskError(f"{question['prompt']!r}: no answer from a server whose /health is fine: {error}") from None


def check_answer(question: dict[str, Any], choice: dict[str, Any]) -> None:
    """Raises NodeTaskError unless the choice holds the known answer and finite log probabilities only."""
    text = choice["message"]["content"] or ""
    for token in (choice.get("logprobs") or {}).get("content") or ():
        if not math.isfinite(token["logprob"]):
            raise NodeTaskError(
                f"{question['prompt']!r}: the log probability of {token['token']!r} is {token['logprob']}"
            )
    if not is_right(text, question["answer"], question["match"]):
        raise NodeTaskError(
            f"{question['prompt']!r}: expected {question['answer']!r} ({question['match']}), got {text[:300]!r}; "
            "the ranks run, but what they compute is wrong"
        )


def is_right(text: str, answer: str, match: str) -> bool:
    """Tells whether a text is the known answer: the whole text where `match` is `exact`, otherwise a part of it."""
    return text.strip() == answer if match == "exact" else answer in text


def _api_key(file: str | None) -> str | None:
    return Path(file).read_text().strip() if file and Path(file).is_file() else None


def _wait_for_health(base: str, timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    last = "nothing listens"
    while time.monotonic() < deadline:
        try:
            with _OPENER.open(f"{base}/health", timeout=5) as response:
                if response.status == 200:
                    return
                last = f"/health answered {response.status}"
        except OSError as error:
            last = str(error)
        time.sleep(_POLL_SECONDS)
    raise NodeTaskError(f"not healthy within {timeout_seconds} s: {last}")
