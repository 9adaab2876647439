import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import processes


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Path]:
    record = tmp_path / "sleep.process"
    yield record
    processes.end(record, 5)


def _identity_of(number: int) -> processes.ProcessIdentity:
    fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return processes.ProcessIdentity(number, int(fields[19]))


def _start(record: Path, *argv: str) -> processes.ProcessIdentity:
    return processes.start(list(argv), record, record.with_name("log"))


def test_a_started_process_is_recorded_and_ended(record: Path) -> None:
    process = _start(record, "sleep", "1000")
    assert processes.recorded_alive(record) == process
    assert _identity_of(process.number) == process
    processes.end(record, 5)
    assert not process.alive
    assert not record.exists()


def test_it_lives_in_a_session_of_its_own(record: Path) -> None:
    process = _start(record, "sleep", "1000")
    assert os.getsid(process.number) != os.getsid(0)


def test_a_process_that_ignores_the_polite_way_is_ended(record: Path) -> None:
    process = _start(record, "sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    processes.end(record, 0.3)
    assert not process.alive


def test_a_reused_number_is_never_taken_for_the_recorded_process(tmp_path: Path) -> None:
    stale = tmp_path / "stale.process"
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        seen = _identity_of(stranger.pid)
        stale.write_text(f"{stranger.pid} {seen.start_time - 1}\n")
        assert processes.recorded_alive(stale) is None
        processes.end(stale, 5)
        assert stranger.poll() is None
        stranger.kill()
    assert not stale.exists()


def test_a_zombie_is_not_alive() -> None:
    with subprocess.Popen(["sleep", "1000"]) as child:
        seen = _identity_of(child.pid)
        assert seen.alive
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not seen.alive


@pytest.mark.parametrize("text", ["", "12", "twelve 13", "1 2 3"])
def test_a_record_that_was_not_written_to_its_end_names_nothing(tmp_path: Path, text: str) -> None:
    record = tmp_path / "half.process"
    record.write_text(text)
    assert processes.read_record(record) is None
    assert processes.recorded_alive(tmp_path / "absent.process") is None


def test_a_program_that_is_not_there_leaves_no_living_process(record: Path) -> None:
    process = _start(record, "no-such-program")
    os.sched_yield()
    processes.end(record, 5)
    assert not process.alive
