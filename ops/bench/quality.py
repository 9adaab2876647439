"""What the answers are worth: needles at several depths and lengths, a count to 200, the same question again."""

import random
from collections import Counter
from dataclasses import dataclass

from ops.bench import prompts
from ops.bench.answers import AnswerError
from ops.bench.record import Quality, Repeated, Tried
from ops.bench.server import Server
from ops.progress import Report

_DEPTHS = (0.1, 0.5, 0.9)
_NEEDLE_TOKENS = 32
_COUNTING_TOKENS = 1200
_REPEATED_TOKENS = 128


@dataclass(frozen=True)
class QualityPlan:
    """What is tried.

    Attributes:
        needle_tokens: context lengths; seed 002 hides three in 33,000 and three in 136,000 tokens.
        counting_runs: how often it counts to 200.
        repeated_runs: how often the same question is asked.
        words_per_token: of the random words.
        timeout_seconds: for one answer.
    """

    needle_tokens: tuple[int, ...]
    counting_runs: int
    repeated_runs: int
    words_per_token: float
    timeout_seconds: float


def try_quality(server: Server, plan: QualityPlan, generator: random.Random, report: Report) -> Quality:
    """Tries everything on one server.

    Raises:
        AnswerError: the repeated question was not answered.
    """
    needles: dict[str, Tried] = {}
    for tokens in plan.needle_tokens:
        report(f"needles in {tokens:,} tokens")
        needles[str(tokens)] = _needles(server, plan, generator, tokens)
    report(f"count from 1 to {prompts.COUNTED_TO}")
    counting = _counting(server, plan)
    report("the same question again")
    return Quality(needles=needles, counting=counting, repeatability=_repeat(server, plan))


def _needles(server: Server, plan: QualityPlan, generator: random.Random, tokens: int) -> Tried:
    if _does_not_fit(server, tokens + 2 * _NEEDLE_TOKENS):
        return Tried(skipped=f"the longest context is {server.most_tokens:,} tokens")
    right, wrong = 0, None
    for depth in _DEPTHS:
        hidden = prompts.needle(generator, round(tokens * plan.words_per_token), depth)
        found = _asked(server, hidden.prompt, _NEEDLE_TOKENS, plan.timeout_seconds)
        if hidden.answer in found:
            right += 1
        else:
            wrong = wrong or f"at depth {depth:g} {hidden.answer} was asked for, the answer was {found[:100]!r}"
    return Tried(right=right, tried=len(_DEPTHS), wrong=wrong)


def _counting(server: Server, plan: QualityPlan) -> Tried:
    if _does_not_fit(server, _COUNTING_TOKENS):
        return Tried(skipped=f"the longest context is {server.most_tokens:,} tokens")
    right, wrong = 0, None
    for _ in range(plan.counting_runs):
        fault = prompts.counting_fault(_asked(server, prompts.COUNTING_PROMPT, _COUNTING_TOKENS, plan.timeout_seconds))
        right += fault is None
        wrong = wrong or fault
    return Tried(right=right, tried=plan.counting_runs, wrong=wrong)


def _repeat(server: Server, plan: QualityPlan) -> Repeated | None:
    if plan.repeated_runs < 2:
        return None
    texts = Counter(
        server.ask(prompts.REPEATED_PROMPT, _REPEATED_TOKENS, plan.timeout_seconds) for _ in range(plan.repeated_runs)
    )
    return Repeated(runs=plan.repeated_runs, agree=texts.most_common(1)[0][1], distinct=len(texts))


def _asked(server: Server, prompt: str, tokens: int, timeout_seconds: float) -> str:
    """Returns the answer; one that is none is wrong, and says so as its text."""
    try:
        return server.ask(prompt, tokens, timeout_seconds)
    except AnswerError as error:
        return f"no answer: {error}"


def _does_not_fit(server: Server, tokens: int) -> bool:
    return server.most_tokens is not None and tokens > server.most_tokens
