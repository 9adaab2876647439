"""A few of the cycles of `python -m bench.rank_cycles --cycles 200`: random kills, checked by program."""

from pathlib import Path

from bench.rank_cycles import run_cycles


def test_no_rank_meets_a_stranger_and_none_stays_alone(tmp_path: Path) -> None:
    found = run_cycles(tmp_path / "group", cycles=4, seed=7)
    assert found.strangers == []
    assert found.alone == []
    assert found.cycles == 4
    assert found.starts >= 12
