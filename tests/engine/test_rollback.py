"""The way back: a Release that was ready is deployed as it was, by the real engine on real nodes."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from ops.chosen_release import RELEASE_FILE
from ops.release_history import StackHistory, read_history
from ops.review import review_stacks
from ops.rollback import chosen, release_file
from spec.history import ReadyRelease
from tests.virtual import Project, Run, cheap_deployment

HEAD = "gb10-one-main-rank0"


class Operator:
    """Somebody with a stack `one` on a catalogue of its own, which may be edited and deleted."""

    def __init__(self, project: Project) -> None:
        self.project = project
        catalog = project.folder / "catalog"
        original = catalog.resolve()
        catalog.unlink()
        shutil.copytree(original, catalog)
        self.catalog = catalog

    def up(self, max_model_len: int, **more: Any) -> Run:
        deployment = cheap_deployment("test-1", "test-2") | more
        deployment["engine"] = deployment["engine"] | {"max_model_len": max_model_len}
        return self.project.up("one", deployment)

    def history(self) -> StackHistory:
        return read_history("one", self.project.variables, self.project.folder)

    def rollback(self, wanted: str | None = None) -> Run:
        """Does what `./fleet rollback one [RELEASE] --yes` does, in the test's folder."""
        return self._with(chosen(self.history(), wanted), "up", "--yes", "--skip-preview", "--stack", "one")

    def _with(self, ready: ReadyRelease, *arguments: str) -> Run:
        with release_file(ready) as path:
            self.project.variables = {**self.project.variables, RELEASE_FILE: str(path)}
            try:
                return self.project.pulumi(*arguments)
            finally:
                self.project.variables = {k: v for k, v in self.project.variables.items() if k != RELEASE_FILE}

    def serves(self, max_model_len: int) -> bool:
        """Whether the group that answers right was started with this length."""
        right = self.project.ask("test-1") == "17 x 23 = 391"
        return right and f"max-model-len={max_model_len}" in self.project.on_node("test-1", f"docker logs {HEAD}")

    def edit_model(self) -> None:
        """Changes what the model must answer, so that planning by the catalogue would give another Release."""
        path = self.catalog / "models" / "cheap.yaml"
        model = yaml.safe_load(path.read_text())
        model["probes"] = [{"prompt": "What is 17 x 23?", "answer": "392"}]
        path.write_text(yaml.safe_dump(model))


@pytest.fixture
def operator(project: Project) -> Operator:
    return Operator(project)


def test_a_rollback_needs_neither_the_old_catalogue_nor_the_patches(operator: Operator) -> None:
    assert operator.up(600).code == 0
    assert operator.up(601).code == 0
    old, new = [one.hash for one in reversed(operator.history().ready)]

    operator.edit_model()
    back = operator.rollback()
    assert back.code == 0, back.output
    assert "deploys the kept Release" in back.output
    assert operator.serves(600)
    assert operator.history().begun == old

    shutil.rmtree(operator.catalog)
    shutil.rmtree(operator.project.folder / "patches")
    (operator.project.folder / "Pulumi.one.yaml").write_text(_only_salt(operator.project.folder / "Pulumi.one.yaml"))
    forth = operator.rollback(new[:10])
    assert forth.code == 0, forth.output
    assert operator.serves(601)
    assert [one.hash for one in operator.history().ready] == [new, old]


def _only_salt(path: Path) -> str:
    return f"encryptionsalt: {yaml.safe_load(path.read_text())['encryptionsalt']}\n"


def test_a_failed_up_is_taken_back_and_the_way_forward_stays(operator: Operator) -> None:
    assert operator.up(600).code == 0
    assert operator.up(601).code == 0
    failed = operator.up(602, environment={"CHEAP_FAULT": "die-at-start"})
    assert failed.code != 0
    assert not operator.history().ended_ready

    assert operator.rollback().code == 0
    assert operator.serves(601)
    assert operator.history().ended_ready
    forward = operator.project.preview("one")
    assert {"main-generation", "main-test-1-rank0", "main-test-2-rank1", "main-ready"} <= forward.changed()

    reviewed = review_stacks(["one"], operator.project.variables, lambda _: None, operator.project.folder)
    review = reviewed.outcomes[0].review
    assert review is not None
    assert reviewed.interrupts
    changes = {change.name: (change.before, change.after) for change in review.groups[0].changes}
    assert changes["--max-model-len"] == ("601", "602")
    assert changes["CHEAP_FAULT"] == (None, "die-at-start")
    names = {step.name for node in review.nodes for step in node.resources}
    assert {"main-test-1-rank0", "main-test-2-rank1"} <= names
    assert [node.claim for node in review.nodes] == ["kept", "kept"]


def test_a_review_names_who_holds_a_node(operator: Operator) -> None:
    assert operator.up(600).code == 0
    operator.project.write("two", cheap_deployment("test-2"))
    reviewed = review_stacks(["two"], operator.project.variables, lambda _: None, operator.project.folder)
    assert reviewed.is_refused
    assert [(one.nodes, one.stacks) for one in reviewed.conflicts] == [(("test-2",), ("two", "one"))]
