import subprocess
from pathlib import Path

import pytest

from lab.commands import run
from lab.errors import LabError
from lab.locks import exclusive, shared, try_exclusive


def test_two_cannot_hold_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "locks/one"
    with (
        exclusive(path, "first", 0),
        pytest.raises(LabError, match="another process holds"),
        exclusive(path, "second", 0.2),
    ):
        pass
    with exclusive(path, "third", 0):
        pass


def test_those_who_share_keep_out_one_who_wants_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    with shared(path), shared(path), try_exclusive(path) as taken:
        assert not taken
    with try_exclusive(path) as taken:
        assert taken


def test_a_program_that_outlives_its_starter_keeps_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with exclusive(path, "start", 0):
        # The shell ends at once, its child does not.
        run(["sh", "-c", "sleep 1 >/dev/null 2>&1 &"], what="start a child")
    with try_exclusive(path) as taken:
        assert not taken
    with try_exclusive(path, 10) as taken:
        assert taken


def test_a_program_in_the_background_does_not_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with exclusive(path, "start", 0):
        child = subprocess.Popen(["sleep", "1000"])
    with try_exclusive(path) as taken:
        assert taken
    child.kill()
    child.wait()
