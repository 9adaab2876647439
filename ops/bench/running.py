"""A whole run: warm-up, the cold pass, the warm pass, quality; what it found goes into one record."""

import random
import secrets
import time
from dataclasses import dataclass

from ops.bench import prompts
from ops.bench.answers import Answer, AnswerError, RawAnswer, read_answer
from ops.bench.load import run_load
from ops.bench.measuring import Passing, Plan
from ops.bench.observing import Observation, fabric_faults, observed_nodes
from ops.bench.quality import QualityPlan, try_quality
from ops.bench.record import Method, Pass, Quality, Run, Setup
from ops.bench.server import Server
from ops.bench.target import Target, program, setup_of
from ops.errors import OperationError
from ops.progress import Report

_CALIBRATION_WORDS = 40
_TEMPLATE_TOKENS = 32
"""Room that a chat template and the fresh words before a prompt may need."""


@dataclass(frozen=True)
class Options:
    """What the operator chose.

    Attributes:
        decode_tokens, prefill_tokens, streams, repetitions: as of `Plan`.
        needle_tokens, counting_runs, repeated_runs: as of `QualityPlan`.
        quality: whether quality is tried at all.
        thinking: `on`, `off` or `default`.
        timeout_seconds: for one request.
    """

    decode_tokens: int = 256
    prefill_tokens: int = 8900
    streams: tuple[int, ...] = (6,)
    repetitions: int = 3
    needle_tokens: tuple[int, ...] = (33_000, 136_000)
    counting_runs: int = 2
    repeated_runs: int = 4
    quality: bool = True
    thinking: str = "off"
    timeout_seconds: float = 1800


def wanted_fields(options: Options) -> dict[str, object]:
    """Returns the fields beyond OpenAI's that the method uses."""
    fields: dict[str, object] = {
        "ignore_eos": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if options.thinking != "default":
        fields["chat_template_kwargs"] = {"enable_thinking": options.thinking == "on"}
    return fields


def run_bench(target: Target, options: Options, report: Report) -> Run:
    """Measures a target.

    Raises:
        OperationError: a node or a server cannot be asked; what a server answers wrong is in the run.
    """
    setup = setup_of(target)
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    seed = secrets.randbits(64)
    generator = random.Random(seed)
    report("warm-up")
    words_per_token = _calibrate(target, generator, options)
    plan, notes = _fitted(target, options, words_per_token)
    _warm_up(target, plan, generator)
    passes = [_observed_pass(name, target, plan, generator, report) for name in ("cold", "warm")]
    quality, quality_faults = _quality(target, options, words_per_token, generator, report)
    return Run(
        identifier=f"{_plain(target.name)}-{started[:10]}-{started[11:19].replace(':', '')}-{seed % 0x10000:04x}",
        started=started,
        program=program(),
        setup=setup,
        method=Method(
            decode_tokens=plan.decode_tokens,
            prefill_tokens=plan.prefill_tokens,
            streams=plan.streams,
            repetitions=plan.repetitions,
            thinking=options.thinking,
            seed=seed,
            refused_fields=target.servers[0].refused,
            notes=notes,
        ),
        passes=tuple(passes),
        quality=quality,
        findings=(*_findings(target, setup), *quality_faults),
    )


def _calibrate(target: Target, generator: random.Random, options: Options) -> float:
    """Returns how many random words make one token, from the difference of two prompts of words nobody else sees."""
    few, many = (
        _prompt_tokens(target.servers[0], prompts.random_words(generator, words), options)
        for words in (_CALIBRATION_WORDS // 4, _CALIBRATION_WORDS)
    )
    if few is None or many is None or many <= few:
        return 1 / 3  # two or three syllables are about three tokens; the run's own count is what is reported
    return (_CALIBRATION_WORDS - _CALIBRATION_WORDS // 4) / (many - few)


def _prompt_tokens(server: Server, prompt: str, options: Options) -> int | None:
    load = run_load([server.question(prompt, 1)], server.headers, options.timeout_seconds)
    return _answered(server, load.answers[0]).prompt_tokens


def _answered(server: Server, raw: RawAnswer) -> Answer:
    try:
        return read_answer(raw)
    except AnswerError as error:
        raise OperationError(f"{server.name} does not answer the warm-up: {error}") from None


def _fitted(target: Target, options: Options, words_per_token: float) -> tuple[Plan, tuple[str, ...]]:
    """Returns the plan as far as the longest context allows it, and where it departs from the method."""
    notes: list[str] = []
    most = min((server.most_tokens for server in target.servers if server.most_tokens), default=None)
    decode_tokens, prefill_tokens = options.decode_tokens, options.prefill_tokens
    if most is not None and decode_tokens > most // 2:
        decode_tokens = most // 2
        notes.append(f"{decode_tokens} decoded tokens: the longest context is {most:,}")
    if most is not None and prefill_tokens > most - _TEMPLATE_TOKENS - most // 10:
        prefill_tokens = most - _TEMPLATE_TOKENS - most // 10
        notes.append(f"a prefill of about {prefill_tokens:,} tokens: the longest context is {most:,}")
    if "ignore_eos" in target.servers[0].refused:
        notes.append("the server does not know ignore_eos, so answers may be shorter")
    if "stream_options" not in target.servers[0].extras:
        notes.append("the server does not count while it streams, so tokens are arrivals; drafts arrive together")
    plan = Plan(
        decode_tokens=decode_tokens,
        prefill_tokens=prefill_tokens,
        prefill_words=round(prefill_tokens * words_per_token),
        streams=options.streams,
        repetitions=options.repetitions,
        probes=target.probes,
        timeout_seconds=options.timeout_seconds,
    )
    return plan, tuple(notes)


def _warm_up(target: Target, plan: Plan, generator: random.Random) -> None:
    """Lets kernels be compiled for short and long prompts and for batches (seed 002 drops its first long prompt)."""
    for words, tokens, times in ((8, plan.decode_tokens, 1), (plan.prefill_words, 1, 1), (8, 16, max(plan.streams))):
        asked = [server for server in target.servers for _ in range(times)]
        questions = [server.question(prompts.random_words(generator, words), tokens) for server in asked]
        load = run_load(questions, asked[0].headers, plan.timeout_seconds)
        for server, raw in zip(asked, load.answers, strict=True):
            _answered(server, raw)


def _observed_pass(name: str, target: Target, plan: Plan, generator: random.Random, report: Report) -> Pass:
    passing = Passing(target.servers, plan, generator, report)
    if target.release is None or target.situation is None:
        return passing.run(name)
    nodes = observed_nodes(target.situation)
    observation = Observation(target.release, nodes)
    try:
        done = passing.run(name)
        used = observation.stop()
    finally:
        observation.abandon()
    return done.model_copy(update={"nodes": used, "doubts": (*done.doubts, *fabric_faults(nodes, used))})


def _quality(
    target: Target, options: Options, words_per_token: float, generator: random.Random, report: Report
) -> tuple[Quality | None, tuple[str, ...]]:
    if not options.quality:
        return None, ()
    plan = QualityPlan(
        options.needle_tokens, options.counting_runs, options.repeated_runs, words_per_token, options.timeout_seconds
    )
    try:
        return try_quality(target.servers[0], plan, generator, report), ()
    except AnswerError as error:
        return None, (f"quality: {error}",)


def _findings(target: Target, setup: Setup) -> list[str]:
    found = []
    if setup.nodes and setup.image_identity is None:
        found.append("the nodes do not all have the same image: `./fleet image verify` says which differs")
    planned = target.release.image.version if target.release else None
    if planned and setup.engine_version and setup.engine_version.split("+")[0] != planned.split("+")[0]:
        found.append(f"the server says it is version {setup.engine_version}, the stack plans {planned}")
    return found


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter == "-" else "-" for letter in name.partition("://")[2] or name)
