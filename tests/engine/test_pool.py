"""A pool behind its router on real nodes: members change, fail and come back, and its users notice nothing."""

import json
import time
from typing import Any

from tests.engine.load import SteadyLoad
from tests.virtual import Project, cheap_deployment, wait_until

FRONT_PORT = 8080


def pool_deployment(a: list[str], b: list[str]) -> dict[str, Any]:
    """Returns two groups of the cheap engine, whose answers take a while, behind one address."""
    return cheap_deployment() | {
        "groups": {"a": a, "b": b},
        "router": {"node": "test-1", "port": FRONT_PORT, "drain_seconds": 20},
        "environment": {"CHEAP_DELAY_SECONDS": "0.5"},
    }


def front_of(project: Project) -> str:
    return f"http://{project.cluster.nodes['test-1'].management_address}:{FRONT_PORT}/v1"


def started_at(project: Project, node: str, container: str) -> str:
    return project.on_node(node, f"docker inspect --format '{{{{.State.StartedAt}}}}' {container}").strip()


def answered(project: Project, node: str, container: str) -> int:
    """Returns how many requests a head has been sent, as it logs them."""
    return project.on_node(node, f"docker logs {container} 2>&1").count("POST /v1/chat/completions")


def test_members_change_while_users_notice_nothing(project: Project) -> None:
    deployment = pool_deployment(["test-1", "test-2"], ["test-3", "test-4"])
    first = project.up("pool", deployment)
    assert first.code == 0, first.output
    outputs = json.loads(project.pulumi("stack", "output", "--json", "--stack", "pool").output)
    assert outputs["front"] == front_of(project)
    assert set(outputs["endpoints"]) == {"a", "b"}
    assert project.pulumi("preview", "--stack", "pool", "--expect-no-changes").code == 0
    router = started_at(project, "test-1", "gb10-pool-router")

    with SteadyLoad(front_of(project)) as load:
        other = started_at(project, "test-3", "gb10-pool-b-rank0")
        deployment["groups"]["a"] = ["test-2", "test-1"]
        one = project.up("pool", deployment)
        assert one.code == 0, one.output
        assert started_at(project, "test-3", "gb10-pool-b-rank0") == other
        assert {name for name in one.changed() if name.startswith("b-")} == {"b-turn"}
        assert load.troubles == []
        assert answered(project, "test-2", "gb10-pool-a-rank0") > 3, "the member that moved gets requests again"

        deployment["engine"]["max_model_len"] = 600
        every = project.up("pool", deployment)
        assert every.code == 0, every.output
        ready_to_give_up = every.position("delete-replaced", "b-test-3-rank0")
        assert every.position("create-replacement", "a-test-2-rank0") < ready_to_give_up
        for node, container in (("test-2", "gb10-pool-a-rank0"), ("test-3", "gb10-pool-b-rank0")):
            assert "max-model-len=600" in project.on_node(node, f"docker logs {container}")
    assert load.troubles == []
    assert len(load.asked) > 20
    assert started_at(project, "test-1", "gb10-pool-router") == router, "the router never restarted"

    gone = project.destroy("pool")
    assert gone.code == 0, gone.output
    assert project.containers("test-1") == []
    left = project.on_node("test-1", "ls /var/lib/gb10-serving").split()
    assert not {"routers", "ranks", "claim.json"} & set(left)


def test_a_killed_member_is_left_out_until_it_answers_right_again(project: Project) -> None:
    first = project.up("pool", pool_deployment(["test-1", "test-2"], ["test-3", "test-4"]))
    assert first.code == 0, first.output
    with SteadyLoad(front_of(project)) as load:
        project.on_node("test-3", "docker kill gb10-pool-b-rank0")
        killed = time.monotonic()
        time.sleep(3)
        assert load.troubles_of_those_begun_after(killed) == []
        before = answered(project, "test-3", "gb10-pool-b-rank0")
        project.on_node("test-3", "docker start gb10-pool-b-rank0")
        wait_until(
            lambda: answered(project, "test-3", "gb10-pool-b-rank0") > before + 3, "the member to be sent requests", 120
        )
    assert load.troubles_of_those_begun_after(killed) == []


def test_a_change_that_fails_stops_at_the_first_member(project: Project) -> None:
    deployment = pool_deployment(["test-1", "test-2"], ["test-3", "test-4"])
    first = project.up("pool", deployment)
    assert first.code == 0, first.output
    other = started_at(project, "test-3", "gb10-pool-b-rank0")
    with SteadyLoad(front_of(project)) as load:
        run = project.up("pool", deployment | {"environment": {"CHEAP_FAULT": "wrong-answer"}})
        assert run.code != 0
        assert "a is wrong, so b was left as it is and goes on serving" in run.output
        assert "what they compute is wrong" in run.output
    assert load.troubles == []
    assert started_at(project, "test-3", "gb10-pool-b-rank0") == other

    mended = project.up("pool", deployment)
    assert mended.code == 0, mended.output
