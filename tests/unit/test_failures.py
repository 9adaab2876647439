"""The table of known failures: every entry recognises its own samples, and an ordinary start none."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import ValidationError

from ops.places import PROJECT
from spec.catalog import Catalog
from spec.errors import SpecificationError
from spec.failures import Failure, Sample, recognise

FAILURES = Catalog(PROJECT / "catalog").failures()
DATA = PROJECT / "tests" / "data"
SAMPLES = [(key, sample) for key, failure in FAILURES.items() for sample in failure.samples]


@pytest.mark.parametrize(("key", "sample"), SAMPLES)
def test_a_sample_is_recognised_as_what_it_is(key: str, sample: Sample) -> None:
    found = recognise(FAILURES, sample.lines, sample.exit_code)
    assert found is not None
    assert found.id == key
    assert FAILURES[key].cure in str(found)


@pytest.mark.parametrize(("key", "failure"), FAILURES.items())
def test_every_signature_of_an_entry_has_a_sample(key: str, failure: Failure) -> None:
    """A signature that no sample needs may be wrong without anyone seeing it."""
    for signature in failure.signatures:
        alone = failure.model_copy(update={"signatures": (signature,), "exit_codes": ()})
        assert any(recognise({key: alone}, sample.lines) for sample in failure.samples), signature
    for code in failure.exit_codes:
        assert any(sample.exit_code == code for sample in failure.samples)


@pytest.mark.parametrize("log", sorted((DATA / "ordinary_logs").glob("*.txt")), ids=lambda path: path.stem)
def test_an_ordinary_start_is_no_failure(log: Path) -> None:
    lines = log.read_text().splitlines()
    assert len(lines) > 20
    assert recognise(FAILURES, lines, 0) is None


@pytest.mark.parametrize("log", sorted((DATA / "failure_logs").glob("*.txt")), ids=lambda path: path.stem)
def test_a_whole_log_of_a_failure(log: Path) -> None:
    """Heads of vLLM 0.32.0 on two ranks: the worker killed while the head served, and both failing at the start."""
    assert id_of(log.read_text().splitlines()[-400:], 1) == log.stem


def test_every_entry_says_what_to_do_and_who_saw_it() -> None:
    for key, failure in FAILURES.items():
        assert failure.cause.endswith("."), key
        assert failure.cure.endswith("."), key
        assert failure.source, key


GID = FAILURES["gid-slot-empty"].samples[0].lines[0]
SYSTEM_ERROR = FAILURES["nccl-system-error"].samples[0].lines[0]
WORKER_FAILED = FAILURES["worker-failed-to-start"].samples[0].lines[0]
OUT_OF_MEMORY = FAILURES["accelerator-out-of-memory"].samples[0].lines[0]


def id_of(lines: Sequence[str], exit_code: int | None = None) -> str | None:
    found = recognise(FAILURES, lines, exit_code)
    return found.id if found else None


def test_a_cause_is_preferred_to_what_follows_from_it() -> None:
    lines = ["INFO nothing", GID, SYSTEM_ERROR, WORKER_FAILED]
    found = recognise(FAILURES, lines, 1)
    assert found is not None
    assert (found.id, found.line) == ("gid-slot-empty", GID)
    assert id_of(lines[2:], 1) == "nccl-system-error"
    assert id_of(lines[3:], 1) == "worker-failed-to-start"


def test_of_two_causes_the_first_counts() -> None:
    assert id_of([GID, OUT_OF_MEMORY]) == "gid-slot-empty"
    assert id_of([OUT_OF_MEMORY, GID]) == "accelerator-out-of-memory"


def test_what_more_lines_agree_on_is_more_specific() -> None:
    downgraded = FAILURES["nccl-downgraded"].samples[0].lines
    assert id_of([OUT_OF_MEMORY, *downgraded]) == "nccl-downgraded"
    assert id_of(downgraded[1:]) == "nccl-internal-error"
    assert recognise(FAILURES, downgraded[:1]) is None


def test_an_exit_code_tells_only_where_no_line_does() -> None:
    assert id_of(["INFO nothing"], 137) == "killed-without-a-word"
    assert id_of([WORKER_FAILED], 137) == "worker-failed-to-start"
    assert recognise(FAILURES, [], 1) is None


def test_colours_do_not_hide_a_line() -> None:
    coloured = WORKER_FAILED.replace("WorkerProc", "\x1b[0;36mWorker\x1b[0mProc")
    found = recognise(FAILURES, [coloured])
    assert found is not None
    assert found.line == WORKER_FAILED


ENTRY = {"tells": "cause", "signatures": ["x"], "cause": "c", "cure": "d", "source": "s", "samples": ["x"]}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"signatures": ["("]}, "not a regular expression"),
        ({"signatures": [[]]}, "at least 1 item"),
        ({"signatures": []}, "needs a signature or an exit code"),
        ({"samples": []}, "at least 1 item"),
        ({"tells": "maybe"}, "'cause', 'symptom' or 'consequence'"),
        ({"cures": "y"}, "Extra inputs"),
    ],
)
def test_an_entry_that_cannot_be_used(change: dict[str, object], why: str) -> None:
    Failure.model_validate(ENTRY)
    with pytest.raises(ValidationError, match=why):
        Failure.model_validate({**ENTRY, **change})


def test_an_id_stands_in_one_file(tmp_path: Path) -> None:
    folder = tmp_path / "failures"
    folder.mkdir()
    entry = "some-id: {tells: cause, signatures: [x], cause: c., cure: d., source: s, samples: [x]}\n"
    (folder / "a.yaml").write_text(entry)
    assert list(Catalog(tmp_path).failures()) == ["some-id"]
    (folder / "b.yaml").write_text(entry)
    with pytest.raises(SpecificationError, match=r"failures/b\.yaml: some-id"):
        Catalog(tmp_path).failures()
    (folder / "b.yaml").write_text(entry.replace("some-id", "Some_id"))
    with pytest.raises(SpecificationError, match=r"failures/b\.yaml: Some_id"):
        Catalog(tmp_path).failures()
