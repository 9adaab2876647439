"""What is kept of a run: one JSON file that says what was measured, on what, how, and what makes it doubtful."""

from typing import Any

from ops.bench.statistics import Spread
from spec.base import Strict


class Method(Strict):
    """How it was measured.

    Attributes:
        decode_tokens: of each single-stream answer, at most.
        prefill_tokens: of the long prompt, about.
        streams: how many at once, for the aggregate; of each member of a pool.
        repetitions: of each single measurement in a pass.
        thinking: `on`, `off` or `default`.
        seed: of the random words, fresh for each run.
        refused_fields: what the server does not understand of the method's requests (`ignore_eos` and others).
        notes: where it departs from seed 000's method.
    """

    decode_tokens: int
    prefill_tokens: int
    streams: tuple[int, ...]
    repetitions: int
    thinking: str
    seed: int
    refused_fields: tuple[str, ...]
    notes: tuple[str, ...]


class Setup(Strict):
    """What was measured.

    Attributes:
        name: of the stack, or the address.
        addresses: base address by member's name; `router` for one in front.
        served_name: of the model at the server.
        engine_version: as the server says.
        release_hash, image_reference, image_identity: of the stack; none for an address.
        settings: as the catalogue's references write them; empty for an address.
        nodes: what each is (kernel, Docker, Python), and the identity of the image that it has.
    """

    name: str
    addresses: dict[str, str]
    served_name: str
    engine_version: str | None
    release_hash: str | None = None
    image_reference: str | None = None
    image_identity: str | None = None
    settings: dict[str, Any] = {}
    nodes: dict[str, dict[str, str | None]] = {}


class Decode(Strict):
    """Single-stream decode of one workload, on all members at once.

    Attributes:
        tokens_per_second: after the first token.
        time_to_first_token_seconds: of the short prompt.
        tokens: generated in one answer.
        reasoning_tokens: of these.
        acceptance_length: tokens of one step, 1 and what was accepted of the draft; none without drafts.
        acceptance_percent: of drafted tokens.
        answer_without_content: whether the model was still thinking at the end.
    """

    tokens_per_second: Spread | None
    time_to_first_token_seconds: Spread
    tokens: int
    reasoning_tokens: Spread
    acceptance_length: float | None
    acceptance_percent: float | None
    answer_without_content: bool


class Prefill(Strict):
    """A long prompt with one output token.

    Attributes:
        prompt_tokens: as the server counts them.
        time_to_first_token_seconds: of each.
        tokens_per_second: prompt tokens by time to first token, of one member.
        total_tokens_per_second: of all members together.
        cached_tokens: that came from a prefix cache; none where nobody says.
    """

    prompt_tokens: int
    time_to_first_token_seconds: Spread
    tokens_per_second: Spread
    total_tokens_per_second: float
    cached_tokens: float | None


class Aggregate(Strict):
    """Several streams at once.

    Attributes:
        streams: over all members.
        tokens_per_second: of all together, from the first request to the last token.
        stream_tokens_per_second: of each while it decoded.
        time_to_first_token_seconds: of each.
        acceptance_length: as of a single stream.
    """

    streams: int
    tokens_per_second: float
    stream_tokens_per_second: Spread | None
    time_to_first_token_seconds: Spread
    acceptance_length: float | None


class Sample(Strict):
    """A node at one moment of a pass.

    Attributes:
        seconds: since the pass began.
        available_bytes: MemAvailable.
        rail_bytes: over the rails in use, by RDMA and by sockets, since the pass began.
        other_bytes: over all other devices and interfaces but loopback.
    """

    seconds: float
    available_bytes: int
    rail_bytes: int
    other_bytes: int


class NodeUse(Strict):
    """What a pass did to a node.

    Attributes:
        bytes_by_device: over each RDMA device and interface, both ways.
        rails: names of those that the deployment asked for.
        lowest_available_bytes: of MemAvailable.
        gpu_mhz, gpu_celsius, gpu_watts, cpu_mhz, hottest_celsius: where they can be read.
        samples: over time.
        unread: what could not be read, and why.
    """

    bytes_by_device: dict[str, int]
    rails: tuple[str, ...]
    lowest_available_bytes: int
    gpu_mhz: Spread | None
    gpu_celsius: Spread | None
    gpu_watts: Spread | None
    cpu_mhz: Spread | None
    hottest_celsius: Spread | None
    samples: tuple[Sample, ...]
    unread: tuple[str, ...]


class Generator(Strict):
    """The load generator's own doing.

    Attributes:
        processor_share: of one core, at most.
        late_seconds: by which its event loop was late in 99 of 100 samples, at most.
    """

    processor_share: float
    late_seconds: float


class Pass(Strict):
    """One pass over everything.

    Attributes:
        name: `cold` or `warm`.
        faults: why it is no result; then nothing of it is reported.
        doubts: what could not be confirmed, though nothing speaks against it.
        decode: by workload.
        prefill: none where no prompt of some length fits.
        aggregates: by streams of each member.
        nodes: what it did to each, for a stack.
        generator: what the load generator did meanwhile.
    """

    name: str
    faults: tuple[str, ...]
    doubts: tuple[str, ...]
    decode: dict[str, Decode] = {}
    prefill: Prefill | None = None
    aggregates: tuple[Aggregate, ...] = ()
    nodes: dict[str, NodeUse] = {}
    generator: Generator | None = None

    @property
    def is_result(self) -> bool:
        """Whether its figures may be reported."""
        return not self.faults


class Tried(Strict):
    """A quality probe that is tried several times.

    Attributes:
        right, tried: how often it was right of how often.
        wrong: the first thing that was wrong.
        skipped: why it was not tried.
    """

    right: int = 0
    tried: int = 0
    wrong: str | None = None
    skipped: str | None = None


class Repeated(Strict):
    """The same greedy request several times.

    Attributes:
        runs: how many.
        agree: how many gave the most frequent text.
        distinct: how many different texts there were.
    """

    runs: int
    agree: int
    distinct: int


class Quality(Strict):
    """What the answers are worth, beside the probes of each pass.

    Attributes:
        needles: by context length in tokens.
        counting: from 1 to 200.
        repeatability: none where it was not asked for.
    """

    needles: dict[str, Tried]
    counting: Tried
    repeatability: Repeated | None


class Run(Strict):
    """One run of the bench.

    Attributes:
        identifier: by which it is found again.
        started: UTC.
        program: hash of this program's runtime, which tells versions apart.
        setup, method: what and how.
        passes: the cold one, then the warm one.
        quality: none where it was left out.
        findings: what an operator must know before believing it.
    """

    identifier: str
    started: str
    program: str
    setup: Setup
    method: Method
    passes: tuple[Pass, ...]
    quality: Quality | None
    findings: tuple[str, ...]

    @property
    def reported(self) -> Pass:
        """The warm pass."""
        return self.passes[-1]

    @property
    def is_result(self) -> bool:
        """Whether its figures may be reported."""
        return self.reported.is_result
