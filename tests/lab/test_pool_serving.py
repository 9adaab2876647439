"""A pool of real vLLM on real nodes behind its router: one member is killed, and its users go on."""

import time
from typing import Any

from ops.status import stack_status
from spec.catalog import read_stack
from spec.plan import plan_release
from tests.engine.load import SteadyLoad
from tests.virtual import PROJECT, Project, wait_until


def pool() -> dict[str, Any]:
    """Returns what Pulumi.lab-pool.yaml deploys, on nodes of the tests."""
    return read_stack(PROJECT, "lab-pool") | {
        "cluster": "test",
        "groups": {"one": ["test-1", "test-2"], "two": ["test-3", "test-4"]},
        "router": {"node": "test-1"},
        # Four ranks load on a few cores at once.
        "readiness": {"start_timeout_seconds": 900},
        "supervision": {"silence_seconds": 15, "silence_while_starting_seconds": 60},
    }


def test_a_pool_of_real_engines_survives_one_of_them(project: Project) -> None:
    run = project.up("lab-pool", pool())
    assert run.code == 0, run.output
    release = plan_release("lab-pool", pool(), project.catalog)
    assert stack_status(release).verdict == "right"
    front = f"http://{project.cluster.nodes['test-1'].management_address}:8080/v1"
    with SteadyLoad(front, clients=2) as load:
        wait_until(lambda: len(load.asked) > 5, "answers", 120)
        assert load.troubles == []
        project.on_node("test-4", "docker kill gb10-lab-pool-two-rank1")
        time.sleep(5)  # until the head of that group has noticed that its worker is gone
        gone = time.monotonic()
        time.sleep(15)
        assert load.troubles_of_those_begun_after(gone) == []
        standings = stack_status(release).standings
        wrong = {(one.kind, one.name) for one in standings if one.verdict != "right"}
        assert {("rank", "two/0"), ("rank", "two/1"), ("router", "gb10-lab-pool-router")} <= wrong
        project.on_node("test-4", "docker start gb10-lab-pool-two-rank1")
        wait_until(lambda: stack_status(release).verdict == "right", "the member to come back", 600)
    assert load.troubles_of_those_begun_after(gone) == []
