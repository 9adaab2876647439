"""What the real engine does to a group on real nodes when something changes, and in which order."""

import pytest

from tests.virtual import Project, Run, cheap_deployment

HEAD = "main-test-1-rank0"
WORKER = "main-test-2-rank1"


def assert_gang_order(run: Run, old: list[str], new: list[str]) -> None:
    """Nothing of the new group starts before all of the old one is gone; heads stop first and start last.

    Args:
        run: an `up`.
        old: ranks that were running, the head first.
        new: ranks that run now, the head first.
    """
    assert run.code == 0, run.output
    gone = [
        next(
            i
            for i, step in enumerate(run.steps)
            if step.name == name and step.operation in ("delete-replaced", "delete")
        )
        for name in old
    ]
    started = [
        next(
            i
            for i, step in enumerate(run.steps)
            if step.name == name and step.operation in ("create-replacement", "create")
        )
        for name in new
    ]
    exchanged = run.position("create-replacement", "main-generation")
    preflights = [
        position
        for position, step in enumerate(run.steps)
        if step.name.endswith("-preflight") and step.operation in ("create", "update", "same")
    ]
    assert max(preflights) < min(gone), "a rank was stopped before every preflight had passed"
    assert gone[0] == min(gone), "the head must stop first"
    assert max(gone) < exchanged, "the generation was exchanged while an old rank still ran"
    assert exchanged < min(started), "a new rank started before the generation was exchanged"
    assert started[0] == max(started), "the head must start last"
    assert (
        run.position(
            "create-replacement"
            if any(s.operation == "create-replacement" and s.name == "main-ready" for s in run.steps)
            else "create",
            "main-ready",
        )
        > started[0]
    )


def test_first_up_second_up_and_destroy(project: Project) -> None:
    first = project.up("one", cheap_deployment("test-1", "test-2"))
    assert first.code == 0, first.output
    assert project.ask("test-1") == "17 x 23 = 391"
    assert project.containers("test-1") == ["gb10-one-main-rank0"]
    assert project.containers("test-2") == ["gb10-one-main-rank1"]

    second = project.pulumi("preview", "--stack", "one", "--expect-no-changes")
    assert second.code == 0, second.output
    assert project.up("one").changed() == set()

    commented = project.write("one", cheap_deployment("test-1", "test-2"), comment="# nothing but a remark")
    assert commented is None
    assert project.up("one").changed() == set()

    gone = project.destroy("one")
    assert gone.code == 0, gone.output
    for node in ("test-1", "test-2"):
        assert project.containers(node) == []
        kept = {"cache", "images", "locks", "logs", "runtime", "weights"}
        assert set(project.on_node(node, "ls /var/lib/gb10-serving").split()) <= kept, "no claim, no rank's folder"


def test_a_changed_flag_replaces_the_whole_group_in_order(project: Project) -> None:
    deployment = cheap_deployment("test-1", "test-2")
    assert project.up("one", deployment).code == 0
    deployment["engine"]["max_model_len"] = 513
    project.write("one", deployment)

    preview = project.preview("one")
    assert preview.code == 0, preview.output
    assert {HEAD, WORKER, "main-generation"} <= preview.changed()
    assert not {name for name in preview.changed() if name.endswith("-claim")}

    run = project.up("one")
    assert_gang_order(run, [HEAD, WORKER], [HEAD, WORKER])
    assert "max-model-len=513" in project.on_node("test-2", "docker logs gb10-one-main-rank1")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["test-1", "test-2", "test-3", "test-4"], ["test-1", "test-2"]),
        (["test-1", "test-2"], ["test-1", "test-2", "test-3", "test-4"]),
        (["test-1", "test-2"], ["test-2", "test-1"]),
        (["test-1", "test-2"], ["test-3", "test-4"]),
        (["test-1", "test-2"], ["test-4", "test-1"]),
    ],
    ids=["removed", "added", "swapped", "moved", "one-moved"],
)
def test_ranks_on_other_nodes_start_after_all_old_ones_are_gone(
    project: Project, before: list[str], after: list[str]
) -> None:
    assert project.up("one", cheap_deployment(*before)).code == 0
    run = project.up("one", cheap_deployment(*after))
    assert_gang_order(
        run,
        [f"main-{node}-rank{rank}" for rank, node in enumerate(before)],
        [f"main-{node}-rank{rank}" for rank, node in enumerate(after)],
    )
    for node in set(before) - set(after):
        assert project.containers(node) == []
        assert "claim.json" not in project.on_node(node, "ls /var/lib/gb10-serving")
    for node in after:
        assert len(project.containers(node)) == 1
    assert project.ask(after[0]) == "17 x 23 = 391"


def test_a_change_to_one_group_leaves_the_other_serving(project: Project) -> None:
    deployment = cheap_deployment()
    deployment["groups"] = {"a": ["test-1", "test-2"], "b": ["test-3", "test-4"]}
    assert project.up("pool", deployment).code == 0
    started = project.on_node("test-3", "docker inspect --format '{{.State.StartedAt}}' gb10-pool-b-rank0")
    deployment["groups"]["a"] = ["test-2", "test-1"]
    run = project.up("pool", deployment)
    assert run.code == 0, run.output
    assert not {name for name in run.changed() if name.startswith("b-")}
    assert project.on_node("test-3", "docker inspect --format '{{.State.StartedAt}}' gb10-pool-b-rank0") == started
    assert project.ask("test-2") == project.ask("test-3")


def test_nodes_change_groups_within_a_stack_once_they_are_free(project: Project) -> None:
    whole = cheap_deployment("test-1", "test-2")
    halves = whole | {"groups": {"a": ["test-1"], "b": ["test-2"]}}
    assert project.up("one", whole).code == 0
    refused = project.up("one", halves)
    assert refused.code != 0
    assert "runs group main of this stack" in refused.output
    assert project.ask("test-1") == "17 x 23 = 391"
    assert project.up("one", whole | {"active": False}).code == 0
    assert project.containers("test-1") == []
    split = project.up("one", halves)
    assert split.code == 0, split.output
    assert project.ask("test-1") == project.ask("test-2") == "17 x 23 = 391"


def test_an_offline_job_is_waited_for_until_all_its_ranks_have_ended(project: Project) -> None:
    deployment = cheap_deployment("test-1", "test-2") | {"executor": "external_launcher", "job": "/opt/cheap/job.py"}
    run = project.up("job", deployment)
    assert run.code == 0, run.output
    for number, node in enumerate(("test-1", "test-2")):
        log = project.on_node(node, f"docker logs gb10-job-main-rank{number}")
        assert log == f"rank {number} of 2 did its part of /model\n"
    assert project.up("job").changed() == set()
    failed = project.up("job", deployment | {"environment": {"CHEAP_EXIT": "3"}})
    assert failed.code != 0
    assert "ended with exit code 3 before the group was ready" in failed.output
