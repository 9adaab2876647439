"""The load generator against a server that writes down its own times."""

import statistics

import pytest

from ops.bench.answers import read_answer
from ops.bench.load import Question, run_load
from tests.known_server import Behaviour, known_server

_FIRST_SECONDS, _RATE, _TOKENS = 2.0, 20.0, 50
_ALLOWED = 0.02


def body(prompt: str) -> dict[str, object]:
    return {"model": "known", "messages": [{"role": "user", "content": prompt}], "max_tokens": _TOKENS, "stream": True}


@pytest.mark.parametrize("streams", [1, 6, 18, 64])
def test_the_generator_reports_what_the_server_did(streams: int) -> None:
    """Held against the times at which the server itself says that it got the request and sent each token."""
    with known_server(Behaviour(first_seconds=_FIRST_SECONDS, tokens_per_second=_RATE)) as server:
        prompts = [f"stream {number}" for number in range(streams)]
        load = run_load([Question(server.base_url, body(prompt)) for prompt in prompts], {}, 60)
        told = {sent.prompt: sent for sent in server.timeline()}
    answers = dict(zip(prompts, map(read_answer, load.answers), strict=True))
    first = [
        answers[prompt].time_to_first_token_seconds / (told[prompt].token_seconds[0] - told[prompt].received_seconds)
        for prompt in prompts
    ]
    rate = [
        (answers[prompt].decode_tokens_per_second or 0)
        * (told[prompt].token_seconds[-1] - told[prompt].token_seconds[0])
        / (_TOKENS - 1)
        for prompt in prompts
    ]
    print(
        f"{streams} streams: first token x {statistics.median(first):.4f}, rate x {statistics.median(rate):.4f}, "
        f"{load.processor_share:.0%} of a core, late {load.late_seconds * 1000:.1f} ms"
    )
    # Where the machine holds the generator up, it says so, and its times are off by no more than that.
    held_up = 2 * load.late_seconds / _FIRST_SECONDS
    assert statistics.median(first) == pytest.approx(1, abs=_ALLOWED + held_up)
    assert statistics.median(rate) == pytest.approx(1, abs=_ALLOWED + held_up)
    assert load.processor_share > 0
    assert all(answer.tokens == _TOKENS for answer in answers.values())


def test_drafts_that_come_together_are_counted_as_tokens() -> None:
    with known_server(Behaviour(tokens_per_second=100, tokens_per_event=4)) as server:
        load = run_load([Question(server.base_url, body("drafts"))], {}, 60)
        told = server.timeline()[-1]
    answer = read_answer(load.answers[0])
    assert (answer.tokens, answer.first_tokens) == (_TOKENS, 4)
    seconds = told.token_seconds[-1] - told.token_seconds[0]
    assert answer.decode_tokens_per_second == pytest.approx((_TOKENS - 4) / seconds, rel=_ALLOWED * 5)
