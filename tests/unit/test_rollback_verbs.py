"""`fleet history` and `fleet rollback` over a given history: what is shown, and what Pulumi is asked for."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ops import rollback_verbs
from ops.cli import app
from ops.errors import OperationError
from ops.release_history import StackHistory
from ops.stacks import planned
from spec.base import canonical_json
from spec.history import ReadyRelease

TEXT = canonical_json(planned("lab").model_dump(mode="json"))
READY = tuple(ReadyRelease(hash=letter * 64, ready_at="2026-11-30T17:00:00Z", release=TEXT) for letter in "ba")


class Told:
    """Stands for the state and for Pulumi."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.history = StackHistory("lab", "b" * 64, READY)
        self.deployed: list[tuple[str, list[str]]] = []
        monkeypatch.setattr(rollback_verbs, "_variables", dict)
        monkeypatch.setattr(rollback_verbs, "read_history", lambda *_: self.history)
        monkeypatch.setattr(rollback_verbs, "deploy", self._deploy)

    def _deploy(self, ready: ReadyRelease, _: str, arguments: list[str], *_more: Any) -> int:
        self.deployed.append((ready.hash[0], arguments))
        return 0

    @staticmethod
    def run(*words: str) -> Result:
        return CliRunner().invoke(app, words)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


def test_the_history_says_which_release_runs(told: Told) -> None:
    lines = told.run("history", "lab").stdout.splitlines()
    assert [line.split()[0][0] for line in lines[1:]] == ["b", "a"]
    assert lines[1].endswith("runs")
    assert not lines[2].endswith("runs")


def test_the_history_as_json_and_one_release_of_it(told: Told) -> None:
    listed = json.loads(told.run("history", "lab", "--json").stdout)
    assert [one["hash"][0] for one in listed["ready"]] == ["b", "a"]
    assert told.run("history", "lab", "aaa").stdout == f"{TEXT}\n"


def test_a_failed_up_is_told_with_the_way_back(told: Told) -> None:
    told.history = StackHistory("lab", "c" * 64, READY)
    assert "did not end ready: `./fleet rollback lab`" in told.run("history", "lab").stdout


def test_a_rollback_asks_pulumi_for_the_release_before(told: Told) -> None:
    assert told.run("rollback", "lab", "--yes").exit_code == 0
    assert told.deployed == [("a", ["up", "--yes", "--skip-preview"])]


def test_a_rollback_can_be_previewed_and_asks_without_yes(told: Told) -> None:
    told.run("rollback", "lab", "--preview")
    told.run("rollback", "lab", "bb")
    assert told.deployed == [("a", ["preview"]), ("b", ["up"])]


def test_a_rollback_to_nowhere_deploys_nothing(told: Told) -> None:
    result = told.run("rollback", "lab", "zz")
    assert isinstance(result.exception, OperationError)
    assert told.deployed == []
