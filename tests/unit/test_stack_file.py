"""The line that parks a deployment: written and taken back, nothing else touched."""

import shutil
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ops.errors import OperationError
from ops.places import PROJECT
from ops.stack_file import is_active, set_active, with_active
from ops.stacks import planned, stacks
from spec.catalog import STACK_KEY
from spec.handover import occupants


@pytest.mark.parametrize("stack", stacks())
def test_every_stack_file_can_be_parked_and_comes_back_as_it_was(tmp_path: Path, stack: str) -> None:
    path = Path(shutil.copy(PROJECT / f"Pulumi.{stack}.yaml", tmp_path))
    before = path.read_text()
    assert is_active(stack, tmp_path)
    assert set_active(stack, False, tmp_path)
    assert not set_active(stack, False, tmp_path)
    assert not is_active(stack, tmp_path)
    assert len(path.read_text().splitlines()) == len(before.splitlines()) + 1
    assert set_active(stack, True, tmp_path)
    assert path.read_text() == before


@given(st.sampled_from([2, 4]), st.sampled_from(["", "# why\n", "\n"]), st.booleans())
def test_the_line_lands_in_the_deployment(indent: int, between: str, commented: bool) -> None:
    space = " " * indent
    heading = f"{space}{STACK_KEY}:{'  # ours' if commented else ''}"
    text = f"config:\n{heading}\n{between}{space * 2}model: x\n{space * 2}engine:\n{space * 3}active: 7\n"
    parked = yaml.safe_load(with_active(text, False))["config"][STACK_KEY]
    assert parked == {"active": False, "model": "x", "engine": {"active": 7}}
    assert with_active(with_active(text, False), True) == text


def test_a_file_written_otherwise_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.x.yaml"
    path.write_text(f"config: {{'{STACK_KEY}': {{model: x}}}}\n")
    with pytest.raises(OperationError, match="write `active: false` below"):
        set_active("x", False, tmp_path)
    assert path.read_text().startswith("config: {")
    with pytest.raises(OperationError, match="there is no stack y"):
        is_active("y", tmp_path)


def test_a_parked_release_occupies_nothing() -> None:
    release = planned("lab")
    parked = release.model_copy(update={"active": False})
    assert occupants(parked) == []
    assert parked.hash != release.hash
    assert parked.groups == release.groups
