"""One pass: decode, prefill and aggregate on all members at once, the probes with it, and what makes it no result."""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ops.bench import prompts
from ops.bench.answers import Answer, AnswerError, RawAnswer, read_answer, text_fault
from ops.bench.load import Load, Question, run_load
from ops.bench.record import Aggregate, Decode, Generator, Pass, Prefill
from ops.bench.server import Counters, Server
from ops.bench.statistics import Spread, spread
from ops.progress import Report
from runtime.node.probes import is_right
from spec.model import Probe

_LATE_SHARE = 0.02
"""A generator that is late by more than this share of what it measured says so."""


@dataclass(frozen=True)
class Plan:
    """What every pass does.

    Attributes:
        decode_tokens: of each single-stream answer.
        prefill_tokens: of the long prompt; 0 where none fits.
        prefill_words: random words that make about so many tokens.
        streams: how many at once, of each member.
        repetitions: of each single measurement.
        probes: questions with known answers.
        timeout_seconds: for one request.
    """

    decode_tokens: int
    prefill_tokens: int
    prefill_words: int
    streams: tuple[int, ...]
    repetitions: int
    probes: tuple[Probe, ...]
    timeout_seconds: float


@dataclass
class Passing:
    """A pass under way.

    Attributes:
        servers: that are measured, all at once.
        plan: what is done.
        generator: of random words.
        report: receives what is being done.
        faults, doubts: found so far.
        loads: of the generator, for its own share.
    """

    servers: Sequence[Server]
    plan: Plan
    generator: random.Random
    report: Report
    faults: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    loads: list[tuple[Load, float]] = field(default_factory=list)

    def run(self, name: str) -> Pass:
        """Runs the pass; the first fault ends it, since nothing after it would be reported."""
        before = self._counters()
        decode: dict[str, Decode] = {}
        prefill: Prefill | None = None
        aggregates: list[Aggregate] = []
        try:
            self._probe()
            for workload in prompts.WORKLOADS:
                self.report(f"{name}: decode, {workload}")
                decode[workload] = self._decode(workload)
            if self.plan.prefill_tokens:
                self.report(f"{name}: prefill of about {self.plan.prefill_tokens:,} tokens")
                prefill = self._prefill()
            for streams in self.plan.streams:
                self.report(f"{name}: {streams * len(self.servers)} streams at once")
                aggregates.append(self._aggregate(streams))
            self._probe()
        except AnswerError as error:
            self.faults.append(str(error))
        self._judge_counters(self._counters().since(before))
        self._judge_generator()
        return Pass(
            name=name,
            faults=tuple(dict.fromkeys(self.faults)),
            doubts=tuple(dict.fromkeys(self.doubts)),
            decode={} if self.faults else decode,
            prefill=None if self.faults else prefill,
            aggregates=() if self.faults else tuple(aggregates),
            generator=Generator(
                processor_share=max((load.processor_share for load, _ in self.loads), default=0.0),
                late_seconds=max((load.late_seconds for load, _ in self.loads), default=0.0),
            ),
        )

    def _probe(self) -> None:
        with ThreadPoolExecutor(max_workers=len(self.servers)) as pool:
            list(pool.map(self._probe_one, self.servers))

    def _probe_one(self, server: Server) -> None:
        for probe in self.plan.probes:
            try:
                text = server.ask(probe.prompt, probe.tokens, self.plan.timeout_seconds)
            except AnswerError as error:
                raise AnswerError(f"{server.name}: probe {probe.prompt!r}: {error}") from None
            if not is_right(text, probe.answer, probe.match):
                raise AnswerError(
                    f"{server.name}: probe {probe.prompt!r}: {probe.answer!r} ({probe.match}) is not in the answer "
                    f"{text[:200]!r}"
                )

    def _decode(self, workload: str) -> Decode:
        before = self._counters()
        answers = [
            answer
            for _ in range(self.plan.repetitions)
            for answer in self._load(lambda server: server.question(self._fresh(workload), self.plan.decode_tokens))
        ]
        counted = self._counters().since(before)
        reasoning = spread(answer.reasoning_tokens for answer in answers)
        assert reasoning
        self._judge_lengths(answers)
        return Decode(
            tokens_per_second=spread(answer.decode_tokens_per_second for answer in answers),
            time_to_first_token_seconds=_first_token(answers),
            tokens=min(answer.tokens for answer in answers),
            reasoning_tokens=reasoning,
            acceptance_length=_acceptance_length(counted),
            acceptance_percent=_acceptance_percent(counted),
            answer_without_content=any(not answer.content for answer in answers),
        )

    def _prefill(self) -> Prefill:
        before = self._counters()
        rounds = [self._load(lambda server: server.question(self._words(), 1)) for _ in range(self.plan.repetitions)]
        answers = [answer for once in rounds for answer in once]
        rates = [[_prefill_rate(answer) for answer in once] for once in rounds]
        cached = self._cached_tokens(answers, self._counters().since(before))
        total = spread(sum(once) for once in rates)
        each = spread(rate for once in rates for rate in once)
        assert total
        assert each
        return Prefill(
            prompt_tokens=min(answer.prompt_tokens or self.plan.prefill_tokens for answer in answers),
            time_to_first_token_seconds=_first_token(answers),
            tokens_per_second=each,
            total_tokens_per_second=total.median,
            cached_tokens=cached,
        )

    def _cached_tokens(self, answers: list[Answer], counted: Counters) -> float | None:
        said = [answer.cached_tokens for answer in answers]
        cached = sum(value or 0 for value in said) if any(value is not None for value in said) else None
        if counted.cached_tokens is not None:
            cached = max(cached or 0, counted.cached_tokens)
        if cached is None:
            self.doubts.append("the server counts no cached tokens, so nothing confirms that the prefill was one")
        elif cached > 0:
            self.faults.append(
                f"{cached:,.0f} tokens of the prefill came from the prefix cache, so it is not a prefill. Somebody "
                "else's requests count, too: measure while nobody else uses the deployment"
            )
        return cached

    def _aggregate(self, streams: int) -> Aggregate:
        before = self._counters()
        workloads = [name for name in prompts.WORKLOADS if name != "counting"]
        turn = iter(range(streams * len(self.servers)))
        answers = self._load(
            lambda server: server.question(
                self._fresh(workloads[next(turn) % len(workloads)]), self.plan.decode_tokens
            ),
            streams,
        )
        self._judge_lengths(answers)
        seconds = max(answer.last_seconds for answer in answers) - min(answer.sent_seconds for answer in answers)
        return Aggregate(
            streams=len(answers),
            tokens_per_second=sum(answer.tokens for answer in answers) / seconds,
            stream_tokens_per_second=spread(answer.decode_tokens_per_second for answer in answers),
            time_to_first_token_seconds=_first_token(answers),
            acceptance_length=_acceptance_length(self._counters().since(before)),
        )

    def _load(self, question: Callable[[Server], Question], times: int = 1) -> list[Answer]:
        """Asks every member at once, each `times` times, and scans what comes back."""
        asked = [server for server in self.servers for _ in range(times)]
        load = run_load([question(server) for server in asked], asked[0].headers, self.plan.timeout_seconds)
        answers = [_read(server, raw) for server, raw in zip(asked, load.answers, strict=True)]
        self.loads.append((load, min(answer.last_seconds - answer.sent_seconds for answer in answers)))
        return answers

    def _fresh(self, workload: str) -> str:
        return prompts.fresh(self.generator, prompts.WORKLOADS[workload])

    def _words(self) -> str:
        return prompts.random_words(self.generator, self.plan.prefill_words)

    def _counters(self) -> Counters:
        first, *others = (server.counters() for server in self.servers)
        for other in others:
            first = first.plus(other)
        return first

    def _judge_lengths(self, answers: Sequence[Answer]) -> None:
        shortest = min(answer.tokens for answer in answers)
        if shortest < self.plan.decode_tokens:
            self.doubts.append(f"an answer ended before its {self.plan.decode_tokens} tokens")

    def _judge_counters(self, counted: Counters) -> None:
        if counted.corrupted_requests:
            self.faults.append(f"the server counts {counted.corrupted_requests:.0f} requests with NaN in their logits")

    def _judge_generator(self) -> None:
        if not self.loads:
            return
        load, shortest_seconds = max(self.loads, key=lambda pair: pair[0].late_seconds / pair[1])
        if load.late_seconds > _LATE_SHARE * shortest_seconds:
            self.doubts.append(
                f"the load generator was late by up to {load.late_seconds * 1000:.0f} ms, more than {_LATE_SHARE:.0%} "
                f"of an answer that took {shortest_seconds:.2f} s: this machine is too busy"
            )


def _read(server: Server, raw: RawAnswer) -> Answer:
    try:
        answer = read_answer(raw)
    except AnswerError as error:
        raise AnswerError(f"{server.name}: {error}") from None
    fault = text_fault(answer.content) or text_fault(answer.reasoning)
    if fault:
        raise AnswerError(f"{server.name}: NaN scan: {fault}")
    return answer


def _first_token(answers: Sequence[Answer]) -> Spread:
    found = spread(answer.time_to_first_token_seconds for answer in answers)
    assert found
    return found


def _prefill_rate(answer: Answer) -> float:
    if answer.prompt_tokens is None:
        raise AnswerError("the server does not say how many tokens a prompt has (`usage`), so prefill has no rate")
    return answer.prompt_tokens / answer.time_to_first_token_seconds


def _acceptance_length(counted: Counters) -> float | None:
    if not counted.drafts or counted.accepted_tokens is None:
        return None
    return 1 + counted.accepted_tokens / counted.drafts


def _acceptance_percent(counted: Counters) -> float | None:
    if not counted.drafted_tokens or counted.accepted_tokens is None:
        return None
    return 100 * counted.accepted_tokens / counted.drafted_tokens
