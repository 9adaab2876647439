"""The history of Releases in the state of the real engine, without nodes: only what keeps it is declared."""

import json
from pathlib import Path
from typing import Any

import pytest

from ops.release_history import StackHistory, history_in
from ops.rollback import chosen, deploy
from spec.catalog import read_stack
from spec.release import Release
from tests.virtual import PROJECT, Project, Run

PROGRAM = """
import pulumi
import pulumi_command as command
from pathlib import Path
from components.release_history import ReleaseHistory
from ops.chosen_release import release_to_deploy

release = release_to_deploy(pulumi.get_stack(), pulumi.Config().get_object("deployment"), Path.cwd())
ready = command.local.Command("ready", create="test ! -e broken", triggers=[release.hash])
ReleaseHistory(release, [ready], pulumi.ResourceOptions())
"""


class OnlyHistory:
    """A project that deploys nothing but the record of what it would deploy."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.project = Project(folder, PROJECT / "catalog", variables)
        (folder / "__main__.py").unlink()
        (folder / "__main__.py").write_text(PROGRAM)
        self.deployment: dict[str, Any] = read_stack(PROJECT, "lab")

    def up(self, max_model_len: int, **more: Any) -> Run:
        self.deployment["engine"]["max_model_len"] = max_model_len
        return self.project.up("lab", self.deployment | more)

    def history(self) -> StackHistory:
        exported = self.project.pulumi("stack", "export", "--show-secrets", "--stack", "lab").output
        return history_in("lab", json.loads(exported)["deployment"]["resources"])

    def lengths(self) -> list[str]:
        """Returns the longest context of each kept Release, newest first."""
        found = []
        for one in self.history().ready:
            command = Release.model_validate_json(one.release).groups[0].ranks[0].command
            found.append(command[command.index("--max-model-len") + 1])
        return found


@pytest.fixture
def stack(tmp_path: Path, pulumi_variables: dict[str, str]) -> OnlyHistory:
    return OnlyHistory(tmp_path / "project", pulumi_variables)


def test_only_a_release_that_was_ready_is_kept(stack: OnlyHistory) -> None:
    assert stack.up(600).code == 0
    assert stack.up(601).code == 0
    assert stack.lengths() == ["601", "600"]
    assert stack.history().ended_ready

    broken = stack.project.folder / "broken"
    broken.touch()
    assert stack.up(602).code != 0
    assert stack.lengths() == ["601", "600"]
    assert not stack.history().ended_ready

    broken.unlink()
    assert stack.up(602).code == 0
    assert stack.lengths() == ["602", "601", "600"]


def test_nothing_changes_in_the_history_when_nothing_changes(stack: OnlyHistory) -> None:
    assert stack.up(600).code == 0
    before = stack.history()
    assert stack.up(600).changed() == set()
    assert stack.history() == before


def test_the_stack_sets_how_many_are_kept(stack: OnlyHistory) -> None:
    for length in (600, 601, 602):
        assert stack.up(length, kept_releases=2).code == 0
    assert stack.lengths() == ["602", "601"]


def test_neither_output_nor_state_shows_a_kept_release(stack: OnlyHistory) -> None:
    first = stack.up(600)
    second = stack.up(601)
    state = stack.project.pulumi("stack", "export", "--stack", "lab").output
    preview = stack.project.preview("lab")
    for shown in (first.output, second.output, state, preview.output):
        assert "--max-model-len" not in shown
        assert "/Td6WFo" not in shown, "the packed history is in the open"
    assert len(stack.history().ready) == 2


def test_a_kept_release_is_deployed_whatever_the_stack_file_says_by_now(stack: OnlyHistory) -> None:
    assert stack.up(600).code == 0
    assert stack.up(601).code == 0
    before = stack.history()
    path = stack.project.folder / "Pulumi.lab.yaml"
    path.write_text(path.read_text().replace("max_num_seqs", "max_number_of_sequences"))
    (stack.project.folder / "catalog").unlink()

    back = chosen(before, None)
    assert back == before.ready[1]
    arguments = ["up", "--yes", "--skip-preview", "--non-interactive"]
    assert deploy(back, "lab", arguments, stack.project.variables, stack.project.folder) == 0
    after = stack.history()
    assert after.begun == back.hash
    assert [one.hash for one in after.ready] == [back.hash, before.ready[0].hash]
    assert chosen(after, None).hash == before.ready[0].hash
