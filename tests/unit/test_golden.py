"""What every stack makes each rank run, as it was last reviewed."""

import pytest

from ops.golden import GOLDEN, golden_path, golden_text
from ops.stacks import planned, stacks


@pytest.mark.parametrize("stack", stacks())
def test_ranks_run_what_was_reviewed(stack: str) -> None:
    """A difference is shown as a diff; if it is meant, `./fleet golden` writes the file anew."""
    assert golden_text(planned(stack)).splitlines() == golden_path(stack).read_text().splitlines()


def test_every_golden_file_belongs_to_a_stack() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(stacks())
