"""Whole runs against a server whose behaviour is known: figures where there are some, else the reason."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ops.bench import keeping, tables
from ops.bench.comparing import compare, run_side, side
from ops.bench.plots import draw
from ops.bench.prompts import ARITHMETIC
from ops.bench.record import Run
from ops.bench.running import Options, run_bench, wanted_fields
from ops.bench.server import look_at
from ops.bench.target import Target, find_target
from ops.cli import app
from ops.errors import OperationError
from tests.known_server import Behaviour, known_server

QUICK = Options(
    decode_tokens=24, prefill_tokens=600, streams=(2, 4), repetitions=2, needle_tokens=(400, 40_000), repeated_runs=2
)


def bench(behaviour: Behaviour, options: Options = QUICK) -> Run:
    with known_server(behaviour) as server:
        target = find_target(server.root, None, None, None, wanted_fields(options))
        return run_bench(target, options, lambda _: None)


@pytest.fixture(scope="module")
def good() -> Run:
    return bench(Behaviour(first_seconds=0.05, tokens_per_second=400, tokens_per_event=2))


def test_a_run_has_every_figure(good: Run) -> None:
    assert good.is_result
    assert [done.name for done in good.passes] == ["cold", "warm"]
    assert set(good.reported.decode) == {"prose", "code", "math", "counting"}
    for decode in good.reported.decode.values():
        assert decode.tokens == 24
        assert decode.tokens_per_second
        assert decode.tokens_per_second.count == 2
        assert decode.tokens_per_second.low <= decode.tokens_per_second.median <= decode.tokens_per_second.high
        assert decode.acceptance_length == 2.0
        assert decode.acceptance_percent == 25.0
    assert good.reported.prefill
    assert good.reported.prefill.cached_tokens == 0
    assert good.reported.prefill.prompt_tokens == pytest.approx(600, rel=0.05)
    assert [aggregate.streams for aggregate in good.reported.aggregates] == [2, 4]
    assert good.reported.generator
    assert good.quality
    assert (good.quality.needles["400"].right, good.quality.needles["400"].tried) == (3, 3)
    assert good.quality.needles["40000"].skipped == "the longest context is 16,384 tokens"
    assert good.quality.repeatability
    assert (good.quality.repeatability.agree, good.quality.repeatability.distinct) == (2, 1)
    assert good.quality.counting.wrong == "it ends after 0 numbers"


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (Behaviour(answers={"17 x 23": "17 x 23 = 401"}), r"'391' \(contains\) is not in the answer '17 x 23 = 401'"),
        (Behaviour(fault="nan"), r"the log probability of 'a' is nan"),
        (Behaviour(fault="run"), r"NaN scan: it ends with '!' 32 times or more"),
        (Behaviour(fault="cached"), r"tokens of the prefill came from the prefix cache"),
    ],
    ids=["wrong", "nan", "run", "cached"],
)
def test_a_pass_that_fails_its_probes_is_no_result(behaviour: Behaviour, reason: str) -> None:
    run = bench(behaviour, Options(**{**vars(QUICK), "decode_tokens": 48, "quality": False}))
    assert not run.is_result
    assert run.reported.decode == {}
    assert run.reported.prefill is None
    text = tables.run_table(run)
    assert "**No result:**" in text
    assert "tokens/s" not in text
    assert any(re.search(reason, fault) for fault in run.reported.faults), run.reported.faults


def test_a_server_that_breaks_off_is_told() -> None:
    with pytest.raises(OperationError, match="does not answer the warm-up"):
        bench(Behaviour(fault="broken"))


def test_a_model_that_thinks_is_measured_and_its_reasoning_is_no_content() -> None:
    run = bench(Behaviour(thinks=True), Options(**{**vars(QUICK), "quality": False}))
    assert run.is_result
    assert not run.reported.decode["prose"].answer_without_content
    assert run.reported.decode["prose"].reasoning_tokens.median == 17


def test_a_server_without_counters_and_extras_is_measured_with_doubts() -> None:
    run = bench(
        Behaviour(counts=False, refuses=("ignore_eos", "logprobs")), Options(**{**vars(QUICK), "quality": False})
    )
    assert run.is_result
    assert run.method.refused_fields == ("ignore_eos", "logprobs")
    assert any("nothing confirms" in doubt for doubt in run.reported.doubts)
    assert any("ignore_eos" in note for note in run.method.notes)


def test_all_members_of_a_pool_are_measured_at_once_and_a_router_counts_for_them() -> None:
    options = Options(**{**vars(QUICK), "quality": False, "repetitions": 1})
    slow = Behaviour(first_seconds=0.3, tokens_per_second=200)
    with known_server(slow) as one, known_server(slow) as two:
        servers = tuple(
            look_at(name, server.base_url, {}, None, wanted_fields(options))
            for name, server in (("one", one), ("two", two))
        )
        run = run_bench(Target("pool", servers, (ARITHMETIC,)), options, lambda _: None)
        told = [server.timeline() for server in (one, two)]
        router = look_at("router", one.base_url, {}, None, wanted_fields(options), (one.root, two.root))
        assert router.counters().cached_tokens == 0
    assert run.reported.prefill
    assert run.reported.prefill.total_tokens_per_second > 1.5 * run.reported.prefill.tokens_per_second.median
    assert [aggregate.streams for aggregate in run.reported.aggregates] == [4, 8]
    assert run.reported.decode["prose"].tokens_per_second
    assert run.reported.decode["prose"].tokens_per_second.count == 2
    # What the servers themselves wrote down: the long prompts were under way on both at the same time.
    long = [[sent for sent in sents if len(sent.prompt.split()) > 100][-1] for sents in told]
    assert max(sent.received_seconds for sent in long) < min(sent.token_seconds[0] for sent in long)


def test_no_two_runs_use_the_same_words() -> None:
    options = Options(**{**vars(QUICK), "quality": False, "repetitions": 1})
    with known_server(Behaviour()) as server:
        target = find_target(server.root, None, None, None, wanted_fields(options))
        for _ in range(2):
            run_bench(target, options, lambda _: None)
        prompts = [sent.prompt for sent in server.timeline() if sent.prompt != "Hello"]
    assert len({prompt[:25] for prompt in prompts}) == len(prompts)


def test_runs_are_kept_found_and_compared(good: Run, tmp_path: Path) -> None:
    path = keeping.keep(good, tmp_path)
    assert keeping.find_run(str(path)) == good
    assert keeping.find_run(good.setup.name, tmp_path) == good
    with pytest.raises(OperationError, match="no run is called nothing"):
        keeping.find_run("nothing", tmp_path)
    other = good.model_copy(update={"method": good.method.model_copy(update={"thinking": "on"})})
    comparison = compare(run_side(good), run_side(other))
    assert comparison.differs == ("thinking: off against on",)
    assert comparison.ratio("decode, prose") == 1
    text = tables.comparison_table(compare(run_side(good), side("qwen_tp4_ep")))
    assert "| decode, math" in text
    assert "76.9" in text
    assert "the winner" in text


def test_two_references_are_compared_with_what_differs() -> None:
    comparison = compare(side("qwen_tp4_ep"), side("qwen_tp4_ep_mtp6"))
    assert "draft_tokens: 4 against 6" in comparison.differs
    ratio = comparison.ratio("decode, prose")
    assert ratio is not None
    assert round(ratio, 2) == 0.88


def test_plots_are_drawn(good: Run, tmp_path: Path) -> None:
    names = {path.name.removeprefix(good.identifier) for path in draw([good, good], tmp_path)}
    assert names == {"-decode.svg", "-decode.png", "-aggregate.svg", "-aggregate.png"}
    assert (tmp_path / f"{good.identifier}-decode.png").read_bytes().startswith(b"\x89PNG")


def test_the_verb_keeps_a_run_and_ends_with_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping.keep, "__defaults__", (tmp_path,))
    quick = ["--decode-tokens", "8", "--prefill-tokens", "100", "--streams", "2", "--repetitions", "1", "--no-quality"]
    with known_server(Behaviour()) as server:
        done = CliRunner().invoke(app, ["bench", server.root, *quick, "--json"])
    assert done.exit_code == 0, done.output
    assert len(list(tmp_path.glob("*.json"))) == 1
    with known_server(Behaviour(answers={})) as server:
        done = CliRunner().invoke(app, ["bench", server.root, *quick])
    assert done.exit_code == 1
    assert "No result" in done.output
    kept = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert sorted(bool(run["passes"][-1]["faults"]) for run in kept) == [False, True]
