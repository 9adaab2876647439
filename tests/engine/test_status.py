"""What `fleet status` and Pulumi's refresh say of real nodes: right, wrong, absent, and a node that cannot be asked."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from ops import status_verb
from ops.cli import app
from ops.status import StackStatus, stack_status
from spec.plan import plan_release
from spec.release import Release
from spec.standing import Standing
from tests.virtual import Project, cheap_deployment, paused, wait_until

DEPLOYMENT: dict[str, Any] = cheap_deployment("test-1", "test-2") | {"router": {"node": "test-1", "drain_seconds": 5}}
DEPLOYMENT["acknowledged"] = {"pool-has-more-than-one-member": "its address stays"}


def release_of(project: Project) -> Release:
    return plan_release("one", DEPLOYMENT, project.catalog)


def status_of(project: Project) -> StackStatus:
    return stack_status(release_of(project))


def troubles(status: StackStatus) -> list[Standing]:
    return [one for one in status.standings if one.verdict != "right"]


def on(status: StackStatus, node: str, kind: str) -> Standing:
    return next(one for one in status.standings if (one.node, one.kind) == (node, kind))


def shown(project: Project, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    """Returns exit code and output of the verb."""
    monkeypatch.setattr(status_verb, "planned", lambda _: release_of(project))
    result = CliRunner().invoke(app, ["status", "one", *arguments])
    return result.exit_code, result.output


def test_a_stack_is_right_absent_wrong_or_unknown(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    first = project.up("one", DEPLOYMENT)
    assert first.code == 0, first.output
    status = status_of(project)
    assert troubles(status) == []
    code, text = shown(project, monkeypatch, "--json")
    assert code == 0
    assert json.loads(text)[0]["verdict"] == "right"

    # A container that somebody removed: Pulumi sees it when it is asked to look.
    project.on_node("test-2", "docker rm --force gb10-one-main-rank1")
    absent = status_of(project)
    assert on(absent, "test-2", "rank").verdict == "absent"
    assert project.pulumi("preview", "--stack", "one", "--expect-no-changes").code == 0
    refreshed = project.pulumi("preview", "--refresh", "--stack", "one")
    assert "main-test-2-rank1" in refreshed.changed()
    code, text = shown(project, monkeypatch)
    assert code == 1
    assert "no container" in text
    mended = project.pulumi("up", "--yes", "--skip-preview", "--refresh", "--stack", "one")
    assert mended.code == 0, mended.output
    wait_until(lambda: troubles(status_of(project)) == [], "the stack to be right again", 90)

    # An image that somebody exchanged, and weights that somebody damaged: only the nodes know.
    image = release_of(project).image.reference
    weights = release_of(project).weights[0]
    project.on_node(
        "test-2",
        f"docker create --name scratch {image} true && docker export scratch | docker import - {image} && "
        f"docker rm scratch; f=$(find {weights.folder} -name '*.safetensors' | head -1); truncate -s 3 $f",
    )
    wrong = status_of(project)
    assert (on(wrong, "test-2", "image").verdict, on(wrong, "test-2", "weights").verdict) == ("wrong", "wrong")
    assert "it runs another image than the one" in " ".join(on(wrong, "test-2", "rank").differs)
    assert on(wrong, "test-1", "image").verdict == "right"
    blind = project.pulumi("preview", "--refresh", "--stack", "one", "--expect-no-changes")
    assert blind.code == 0, "commands have no read: neither the image nor the weights are looked at"

    with paused("test-2"):
        unknown = status_of(project)
        assert {one.verdict for one in unknown.standings if one.node == "test-2"} == {"unknown"}
        assert "does not answer ssh" in on(unknown, "test-2", "rank").differs[0]
        assert unknown.memory["test-2"] is None
        assert on(unknown, "test-1", "image").verdict == "right"
    project.on_node("test-2", f"docker rm --force gb10-one-main-rank1; docker rmi {image}; rm -rf {weights.folder}*")
