"""Which Release the program deploys: the stack file's, or the one that it is given."""

from pathlib import Path

import pytest

from ops.chosen_release import RELEASE_FILE, is_told, release_to_deploy
from ops.places import PROJECT
from ops.stacks import planned
from spec.base import canonical_json
from spec.catalog import read_stack
from spec.errors import SpecificationError


def given(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    path.write_text(text)
    monkeypatch.setenv(RELEASE_FILE, str(path))
    return path


def test_the_stack_file_is_planned_where_no_release_is_given() -> None:
    assert not is_told()
    assert release_to_deploy("lab", read_stack(PROJECT, "lab"), PROJECT) == planned("lab")


def test_a_given_release_needs_neither_stack_file_nor_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = planned("lab")
    given(tmp_path / "r.json", canonical_json(release.model_dump(mode="json")), monkeypatch)
    assert is_told()
    assert release_to_deploy("lab", {"no": "deployment"}, tmp_path) == release


def test_a_release_of_another_stack_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given(tmp_path / "r.json", canonical_json(planned("lab").model_dump(mode="json")), monkeypatch)
    with pytest.raises(SpecificationError, match="a Release is of one stack, and this one is lab-pool"):
        release_to_deploy("lab-pool", None, PROJECT)


@pytest.mark.parametrize("text", ["", "no JSON", "{}"])
def test_something_else_than_a_release_is_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = given(tmp_path / "r.json", text, monkeypatch)
    with pytest.raises(SpecificationError, match=str(path)):
        release_to_deploy("lab", None, PROJECT)
