"""Real vLLM on real nodes: ranks die, hang, are cut off and reboot, and the group comes back by itself or says why not.

All tests share one deployment, since vLLM takes most of a minute to start; each begins and ends with a group that
serves.
"""

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lab.docker_engine import existing_engine
from lab.node import container_name
from ops.places import PROJECT
from spec.catalog import Catalog, read_stack
from tests.virtual import FABRIC, STORAGE, Project, wait_until

HEAD, WORKER = ("test-1", "gb10-lab-main-rank0"), ("test-2", "gb10-lab-main-rank1")
RANKS = (HEAD, WORKER)
API_KEY = "correct-horse-battery-staple-7717"
_LONG_SECONDS = 400


@pytest.fixture(scope="module")
def lab(
    tmp_path_factory: pytest.TempPathFactory, virtual_nodes: Catalog, pulumi_variables: dict[str, str]
) -> Iterator[Project]:
    """The lab's stack on two nodes of the tests, with an API key; it serves."""
    made = Project(tmp_path_factory.mktemp("lab") / "project", virtual_nodes.folder, pulumi_variables)
    made.api_key = API_KEY
    made.write("lab", deployment())
    made.pulumi("config", "set", "--secret", "gb10-serving:apiKey", API_KEY, "--stack", "lab")
    run = made.up("lab")
    assert run.code == 0, run.output
    yield made
    made.end_processes()
    made.clean_nodes()


@pytest.fixture
def serving(lab: Project) -> Iterator[Project]:
    """The same, and it answers right before and after."""
    assert lab.answers(HEAD[0])
    yield lab
    wait_until(lambda: lab.answers(HEAD[0]), "an answer", _LONG_SECONDS)


def deployment(**changes: Any) -> dict[str, Any]:
    """Returns what Pulumi.lab.yaml deploys, on nodes of the tests; it may start again as often as there are tests."""
    found = read_stack(PROJECT, "lab")
    return (
        found
        | {"cluster": "test", "groups": {"main": [HEAD[0], WORKER[0]]}, "supervision": {"restarts": 100}}
        | changes
    )


def states(project: Project) -> list[str]:
    return [project.status(node, rank).get("state", "") for node, rank in RANKS]


def views(project: Project) -> list[list[str] | None]:
    return [project.status(node, rank).get("view") for node, rank in RANKS]


def engine_processes(project: Project, node: str, rank: str) -> int:
    """Returns how many processes besides the supervisor run in a rank's container."""
    if project.on_node(node, f"docker inspect --format '{{{{.State.Running}}}}' {rank}") == "false\n":
        return 0
    rows = project.on_node(node, f"docker top {rank} -eo pid,args").splitlines()[1:]
    return sum("/gb10-serving/code/runtime/rank" not in row for row in rows)


def wait_for_a_new_life(project: Project, old: list[list[str] | None], since: float, what: str) -> None:
    """Waits until the old engines are gone and the group answers again; prints both times."""
    gone: dict[str, float] = {}

    def are_gone() -> bool:
        for node, rank in RANKS:
            at = project.status(node, rank).get("engine", {}).get("gone_at_seconds", 0)
            if at > since:
                gone[rank] = at
        return all(view != was for view, was in zip(views(project), old, strict=True))

    wait_until(are_gone, f"the end after {what}")
    wait_until(lambda: states(project) == ["serving", "serving"], f"the service after {what}", _LONG_SECONDS)
    wait_until(lambda: project.answers(HEAD[0]), f"an answer after {what}", _LONG_SECONDS)
    ends = ", ".join(f"{rank} gone after {at - since:.1f} s" for rank, at in sorted(gone.items()))
    print(f"\n{what}: {ends or 'gone with their containers'}; a right answer after {time.time() - since:.0f} s")


def causes(project: Project) -> list[str]:
    return [(project.status(node, rank).get("cause") or {}).get("text", "") for node, rank in RANKS]


def kill_engine(project: Project, node: str, rank: str) -> None:
    process = project.status(node, rank)["engine"]["process"]
    project.on_node(node, f"docker exec {rank} sh -c 'kill -9 {process}'")


def kill_container(project: Project, node: str, rank: str) -> None:
    """Kills the first process from outside, as the kernel's OOM killer does: Docker does not know of a wish."""
    project.on_node(node, f"kill -9 $(docker inspect --format '{{{{.State.Pid}}}}' {rank})")


@contextlib.contextmanager
def engine_of_nodes(command: str, undo: str, *nodes: str) -> Iterator[None]:
    """Does something to virtual nodes and takes it back."""
    engine = existing_engine()
    assert engine is not None
    names = [container_name(FABRIC, node) for node in nodes]
    engine.docker(command, *names, what=f"{command} nodes")
    try:
        yield
    finally:
        engine.docker(undo, *names, what=f"{undo} nodes")


@pytest.mark.parametrize("rank", RANKS, ids=["head", "worker"])
def test_a_killed_engine(serving: Project, rank: tuple[str, str]) -> None:
    old, since = views(serving), time.time()
    kill_engine(serving, *rank)
    wait_for_a_new_life(serving, old, since, f"the engine of {rank[1]} was killed")
    assert all("was killed by signal 9" in text for text in causes(serving))


@pytest.mark.parametrize("rank", RANKS, ids=["head", "worker"])
def test_a_killed_container(serving: Project, rank: tuple[str, str]) -> None:
    old, since = views(serving), time.time()
    kill_container(serving, *rank)
    wait_for_a_new_life(serving, old, since, f"the container of {rank[1]} was killed")
    head, worker = views(serving)
    assert head == worker, "both serve in one life"


def test_a_node_that_hangs_for_twenty_seconds(serving: Project) -> None:
    old, since = views(serving), time.time()
    begun = time.monotonic()
    with engine_of_nodes("pause", "unpause", WORKER[0]):
        wait_until(lambda: engine_processes(serving, *HEAD) == 0, "the end of the head's engine")
        print(f"\nthe head's engine is gone {time.monotonic() - begun:.1f} s after the other node began to hang")
        assert "rank 1 on test-2 has not answered for" in causes(serving)[0]
        time.sleep(max(0.0, 20 - (time.monotonic() - begun)))
    wait_for_a_new_life(serving, old, since, "a node hung for 20 s")


def test_a_node_whose_network_is_cut(serving: Project) -> None:
    old, since = views(serving), time.time()
    begun = time.monotonic()
    serving.on_node(WORKER[0], "iptables -I INPUT -i rail0 -j DROP; iptables -I OUTPUT -o rail0 -j DROP")
    try:
        for node, rank in RANKS:
            wait_until(lambda node=node, rank=rank: engine_processes(serving, node, rank) == 0, f"the end of {rank}")
        print(f"\nboth engines are gone {time.monotonic() - begun:.1f} s after the cut")
        waiting = serving.status(*HEAD)
        assert any("rank 1 on test-2" in text for text in [*waiting["waiting_for"], waiting["cause"]["text"]])
    finally:
        serving.on_node(WORKER[0], "iptables -D INPUT -i rail0 -j DROP; iptables -D OUTPUT -o rail0 -j DROP")
    wait_for_a_new_life(serving, old, since, "a node was cut off")


def test_all_nodes_restart_at_once(serving: Project) -> None:
    old, since = views(serving), time.time()
    engine = existing_engine()
    assert engine is not None
    engine.docker("restart", *(container_name(FABRIC, node) for node, _ in RANKS), what="restart nodes")
    wait_for_a_new_life(serving, old, since, "all nodes restarted")


def test_an_old_rank_that_somebody_starts_by_hand_is_refused_by_name(serving: Project) -> None:
    """The worker's container is exchanged for one of another generation, as from an old script."""
    node, rank = WORKER
    inspected = json.loads(serving.on_node(node, f"docker inspect {rank}"))[0]
    command = [*inspected["Config"]["Entrypoint"], *inspected["Config"]["Cmd"]]
    request = json.loads(command[-1])
    old = json.dumps({**request, "generation": "0" * 64})
    mounts = " ".join(f"-v {m['Source']}:{m['Target']}" for m in inspected["HostConfig"]["Mounts"])
    serving.on_node(node, f"docker stop --time 5 {rank}")
    environment = " ".join(f"-e '{entry}'" for entry in inspected["Config"]["Env"])
    serving.on_node(
        node,
        f"docker run -d --name by-hand --network host --ipc host {mounts} {environment} --entrypoint {command[0]} "
        f"{inspected['Config']['Image']} {' '.join(command[1:-1])} '{old}'",
    )
    words = "rank 1 on test-2 is of generation 000000000000 and this group is of"
    try:
        wait_until(lambda: words in " ".join(serving.status(*HEAD).get("waiting_for", ())), "the refusal")
        assert engine_processes(serving, *HEAD) == 0
    finally:
        serving.on_node(node, f"docker rm --force by-hand; docker start {rank}")


def test_the_api_key_is_needed_and_stands_nowhere(serving: Project) -> None:
    """Looked through: what Docker tells, argv and environment of the first process, logs, state, what `up` printed."""
    serving.api_key = None
    assert not serving.answers(HEAD[0])
    serving.api_key = API_KEY
    run = serving.up("lab")
    assert run.code == 0, run.output
    seen = [run.output, serving.pulumi("stack", "export", "--stack", "lab").output]
    seen += [path.read_text(errors="replace") for path in (serving.folder / "state").rglob("*") if path.is_file()]
    for node, rank in RANKS:
        seen.append(serving.on_node(node, f"docker inspect {rank}; docker logs {rank} 2>&1; ps -eo args"))
        first = f"$(docker inspect --format '{{{{.State.Pid}}}}' {rank})"
        seen.append(serving.on_node(node, f"tr '\\0' '\\n' < /proc/{first}/environ; cat /proc/{first}/cmdline"))
        seen.append(serving.on_node(node, f"cat {STORAGE}/ranks/{rank}/record/*"))
        held = serving.on_node(node, f"grep -rl {API_KEY} {STORAGE} /etc /var/log /root 2>/dev/null", check=False)
        assert held.split() == [f"{STORAGE}/ranks/{rank}/secrets/api-key"]
        assert serving.on_node(node, f"stat -c '%a %U' {held}") == "600 root\n"
    assert all(API_KEY not in text for text in seen)
    key = serving.on_node(HEAD[0], f"cat {STORAGE}/ranks/{HEAD[1]}/secrets/group-key")
    assert all(key not in text for text in seen), "the group's key"


MARGIN_KIB = 4 << 20
"""What may be taken and given back beside this test, by other tests too, before the group would trip by itself."""

EATER = """
import sys, time
held = []
while True:
    figures = dict(line.split(":") for line in open("/proc/meminfo"))
    if int(figures["MemAvailable"].split()[0]) > int(sys.argv[1]):
        held.append(bytearray(64 << 20))
        held[-1][::4096] = b"x" * len(held[-1][::4096])
    else:
        time.sleep(0.05)
"""
"""Takes memory until only so many KiB are available, and more whenever others give some back."""


def test_a_process_that_eats_the_memory_trips_the_group_and_up_brings_it_back(lab: Project) -> None:
    """The floor is set a little below what is free now, so that the machine under the nodes is not in danger."""
    node = WORKER[0]
    figures = dict(line.split(":") for line in lab.on_node(node, "cat /proc/meminfo").splitlines())
    total, available = (int(figures[key].split()[0]) for key in ("MemTotal", "MemAvailable"))
    floor = round(100 * (available - MARGIN_KIB) / total, 1)
    run = lab.up("lab", deployment(memory={"required_bytes": "64 MiB", "floor_percent": floor}))
    assert run.code == 0, run.output
    eater = subprocess.Popen(["python3", "-c", EATER, str(int(floor * total / 100) - MARGIN_KIB // 8)])
    begun = time.monotonic()
    try:
        wait_until(lambda: states(lab) == ["tripped", "tripped"], "the trip")
        print(f"\nboth ranks tripped {time.monotonic() - begun:.1f} s after the process began to eat")
    finally:
        eater.kill()
        eater.wait()
    for rank in RANKS:
        assert engine_processes(lab, *rank) == 0
    assert "MemAvailable" in causes(lab)[0]
    assert "below the floor; the floor is" in causes(lab)[0]
    kill_container(lab, *WORKER)
    wait_until(lambda: states(lab) == ["tripped", "tripped"], "the trip to outlive the container")
    assert lab.on_node(node, "echo fine") == "fine\n"
    run = lab.up("lab")
    assert run.code == 0, run.output
    assert "group main is tripped" in run.output
    assert lab.answers(HEAD[0])
    assert lab.up("lab", deployment()).code == 0
