"""What an operator sees when something fails: one readable error, nothing stopped too early, nothing left behind."""

import json
import os
import random
import re
import signal
import subprocess
import time

from tests.virtual import Project, cheap_deployment, paused, wait_until


def assert_readable(output: str) -> None:
    """A failure is told by one message, not by a traceback of the program."""
    assert "Traceback" not in output
    assert "Exception ignored" not in output
    assert "Resource monitor has terminated" not in output


def test_a_hanging_node_stops_an_up_before_anything_is_touched(project: Project) -> None:
    deployment = cheap_deployment("test-1", "test-2")
    assert project.up("one", deployment).code == 0
    deployment["engine"]["max_model_len"] = 600
    with paused("test-2"):
        project.write("one", deployment)
        preview = project.preview("one")
        assert preview.code == 0, preview.output
        assert {"main-test-1-rank0", "main-test-2-rank1"} <= preview.changed()
        run = project.up("one")
        assert run.code != 0
        assert re.search(r"test-2 \([\d.]+\) does not answer ssh within 5 s", run.output)
        assert_readable(run.output)
        assert not any("rank" in step.name for step in run.steps if step.operation != "same")
        assert "max-model-len=512" in project.on_node("test-1", "docker logs gb10-one-main-rank0")
    # The pause was long enough for the group to stop; it comes back by itself.
    wait_until(lambda: project.answers("test-1"), "the group to come back")
    assert project.up("one").code == 0
    assert "max-model-len=600" in project.on_node("test-1", "docker logs gb10-one-main-rank0")


FAULTS = {
    "die-at-start": [
        "group main is failed: the engine of rank 0 (head) on test-1 ended with exit code 1",
        "ValueError: the head could not start",
    ],
    "die-at-answer": ["the server answered 500", "the first answer killed the engine"],
    "wrong-answer": ["expected '391' (contains), got 'no'", "what they compute is wrong"],
}


def test_a_head_that_does_not_serve_fails_the_up_with_its_own_words(project: Project) -> None:
    deployment = cheap_deployment("test-1", "test-2")
    deployment["readiness"]["start_timeout_seconds"] = 3600
    for fault, words in FAULTS.items():
        run = project.up("one", deployment | {"environment": {"CHEAP_FAULT": fault}})
        assert run.code != 0, fault
        for text in words:
            assert text in run.output
        assert_readable(run.output)
    repaired = project.up("one", deployment)
    assert repaired.code == 0, repaired.output


def test_a_worker_killed_during_the_start_is_named(project: Project) -> None:
    deployment = cheap_deployment("test-1", "test-2")
    deployment["environment"] = {"CHEAP_FAULT": "slow-start"}
    deployment["readiness"]["start_timeout_seconds"] = 3600
    project.write("one", deployment)
    process = project.start("up", "--yes", "--skip-preview", "--stack", "one")
    end = time.monotonic() + 60
    while "gb10-one-main-rank0" not in project.containers("test-1"):
        assert time.monotonic() < end
        time.sleep(0.3)
    project.on_node("test-2", "docker kill gb10-one-main-rank1")
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "rank 1 on test-2 ended with exit code 137 before the group was ready" in output
    assert_readable(output)


def test_a_second_stack_is_told_who_holds_the_node(project: Project) -> None:
    assert project.up("one", cheap_deployment("test-1", "test-2")).code == 0
    started = project.on_node("test-2", "docker inspect --format '{{.State.StartedAt}}' gb10-one-main-rank1")
    second = project.up("two", cheap_deployment("test-2", "test-3"))
    assert second.code != 0
    assert re.search(r"test-2 \([\d.]+\): claim: this node serves stack one, group main", second.output)
    assert "pulumi destroy --stack one" in second.output
    assert_readable(second.output)
    assert project.containers("test-3") == []
    assert project.on_node("test-2", "docker inspect --format '{{.State.StartedAt}}' gb10-one-main-rank1") == started
    assert project.ask("test-1") == "17 x 23 = 391"


def test_an_image_that_was_exchanged_on_one_node_is_refused(project: Project) -> None:
    deployment = cheap_deployment("test-1", "test-2")
    assert project.up("one", deployment).code == 0
    image = project.image_reference()
    project.on_node(
        "test-2",
        f"docker rm -f scratch 2>/dev/null; docker create --name scratch {image} true && docker export scratch | "
        f"docker import - {image} && docker rm scratch",
    )
    deployment["engine"]["max_model_len"] = 600
    run = project.up("one", deployment)
    assert run.code != 0
    assert f"image: {image} on this node is not the one that was built: layer 0 is sha256:" in run.output
    assert project.ask("test-1") == "17 x 23 = 391"
    project.on_node("test-2", f"docker rm --force gb10-one-main-rank1; docker rmi {image}")


def test_a_foreign_container_of_the_same_name_is_named_and_left_alone(project: Project) -> None:
    image = project.image_reference()
    deployment = cheap_deployment("test-1")
    assert project.up("one", deployment).code == 0
    assert project.destroy("one").code == 0
    project.on_node("test-1", f"docker create --name gb10-one-main-rank0 {image} sleep 1")
    run = project.up("one")
    assert run.code != 0
    assert "a container named gb10-one-main-rank0 is on this node and was not made by stack one" in run.output
    assert_readable(run.output)
    assert project.containers("test-1") == ["gb10-one-main-rank0"]


def forget(project: Project, *names: str) -> None:
    """Takes resources out of the state of stack `one` and leaves on the nodes what they stand for."""
    state = json.loads(project.pulumi("stack", "export", "--stack", "one").output)
    urns = {found["urn"].rsplit("::", 1)[-1]: found["urn"] for found in state["deployment"]["resources"]}
    for name in names:
        assert project.pulumi("state", "delete", urns[name], "--force", "--yes", "--stack", "one").code == 0


def test_ranks_that_met_a_leftover_start_anew(project: Project) -> None:
    """As after a kill while the head was created: the worker has joined a head that the state does not have."""
    deployment = cheap_deployment("test-1", "test-2")
    assert project.up("one", deployment).code == 0
    forget(project, "release-history", "main-ready", "main-test-1-rank0")
    run = project.up("one")
    assert run.code == 0, run.output
    assert project.on_node("test-2", "docker logs gb10-one-main-rank1").count("joined the head") == 2
    assert project.ask("test-1") == "17 x 23 = 391"


def test_a_repeated_up_starts_a_group_again_that_had_ended(project: Project) -> None:
    assert project.up("one", cheap_deployment("test-1", "test-2")).code == 0
    project.on_node("test-1", "docker kill gb10-one-main-rank0")
    forget(project, "release-history", "main-ready")
    run = project.up("one")
    assert run.code == 0, run.output
    assert project.ask("test-1") == "17 x 23 = 391"


def kill_points() -> list[float]:
    """Six seeded moments of an `up`, half of them while containers are created."""
    random_source = random.Random(20261130)
    return [random_source.uniform(0.5, 5.5) for _ in range(3)] + [-random_source.uniform(0, 1.2) for _ in range(3)]


def test_a_killed_up_never_blocks_the_next(project: Project) -> None:
    """Positive moments count from the start, negative ones from the first container's creation."""
    deployment = cheap_deployment("test-1", "test-2")
    project.write("one", deployment)
    for round_number, moment in enumerate(kill_points()):
        deployment["engine"]["max_model_len"] = 512 + round_number
        project.write("one", deployment)
        process = project.start("up", "--yes", "--skip-preview", "--stack", "one")
        _wait_for(process, moment)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        again = project.up("one")
        if again.code != 0:
            assert "currently locked" in again.output, again.output
            assert "`pulumi cancel`" in again.output
            assert project.pulumi("cancel", "--yes", "--stack", "one").code == 0
            again = project.up("one")
        assert again.code == 0, f"round {round_number}, killed at {moment:.2f}:\n{again.output}"
        assert project.ask("test-1") == "17 x 23 = 391"
        for node in ("test-1", "test-2"):
            assert len(project.containers(node)) == 1
        assert f"max-model-len={512 + round_number}" in project.on_node("test-1", "docker logs gb10-one-main-rank0")


def _wait_for(process: "subprocess.Popen[str]", moment: float) -> None:
    if moment >= 0:
        time.sleep(moment)
        return
    assert process.stdout is not None
    for line in process.stdout:
        if "Container" in line and "creating" in line:
            break
    time.sleep(-moment)
