"""Bench, doctor and fabric check on real virtual nodes: what is planted is found, and nothing else."""

from collections.abc import Iterator

import pytest

from ops import stacks
from ops.bench.running import Options, run_bench, wanted_fields
from ops.bench.target import find_target
from ops.doctor.examining import examine, patients
from ops.fabric_check.checking import check
from ops.fabric_check.subject import find_subject
from ops.places import PROJECT
from spec.catalog import Catalog, read_stack
from tests.virtual import Project

SLOW = "tc qdisc replace dev rail0 root tbf rate 200mbit burst 64kb latency 50ms"
FREE = "tc qdisc del dev rail0 root"

FAULTS = {
    "earlyoom-runs": "cp /bin/sleep /tmp/earlyoom && (setsid /tmp/earlyoom 600 >/dev/null 2>&1 &)",
    "shared-memory-small": "mount -o remount,size=64m /dev/shm",
    "leftover-container": "docker create --name dead --label gb10-serving.stack=gone {image} true",
    "claim-without-rank": 'echo \'{{"stack": "other", "group": "main", "since": "today"}}\' > {storage}/claim.json',
    "stranger-restarts": "docker create --name stranger --network host --restart always {image} true",
    "duplicate-address": "ip address add {rail}/27 dev eth9",
    "leftover-nccl-conf": "echo NCCL_IB_GID_INDEX=3 > /etc/nccl.conf",
    "ssh-few-sessions": "echo MaxSessions 2 > /etc/ssh/sshd_config.d/00-planted.conf",
    "ssh-few-starts": "echo MaxStartups 3:50:10 >> /etc/ssh/sshd_config.d/00-planted.conf",
    "cache-of-another-user": "mkdir -p {storage}/planted && chown 1234 {storage}/planted",
}
CURES = (
    "pkill -x earlyoom; mount -o remount,size=1g /dev/shm; docker rm --force dead stranger; "
    "rm -rf /etc/nccl.conf /etc/ssh/sshd_config.d/00-planted.conf /tmp/earlyoom; "
    "rm -rf {storage}/claim.json {storage}/planted; "
    "ip link del eth9"
)


@pytest.fixture(scope="module")
def lab(
    tmp_path_factory: pytest.TempPathFactory, virtual_nodes: Catalog, pulumi_variables: dict[str, str]
) -> Iterator[Project]:
    """The lab's stack on two nodes of the tests; it serves, until the last test."""
    made = Project(tmp_path_factory.mktemp("lab") / "project", virtual_nodes.folder, pulumi_variables)
    run = made.up("lab", read_stack(PROJECT, "lab") | {"cluster": "test", "groups": {"main": ["test-1", "test-2"]}})
    assert run.code == 0, run.output
    yield made
    made.end_processes()
    made.clean_nodes()


@pytest.fixture
def known(lab: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Lets the verbs see the project of the test in place of this checkout."""
    plan = stacks.planned
    monkeypatch.setattr(stacks, "CATALOG", Catalog(lab.folder / "catalog"))
    monkeypatch.setattr(stacks, "PROJECT", lab.folder)
    monkeypatch.setattr(stacks, "planned", lambda name: plan(name, lab.folder))
    return lab


def silent(_: str) -> None:
    pass


def test_a_link_slowed_by_tbf_is_found_with_its_figure(known: Project) -> None:
    sound = check(find_subject("test"), disturb=True, collectives=False, report=silent)
    assert [found.id for found in sound.findings] == []
    assert all(flow.why is None for flow in sound.flows)
    known.on_node("test-1", SLOW)
    try:
        slowed = check(find_subject("lab"), disturb=True, collectives=False, report=silent)
    finally:
        known.on_node("test-1", FREE)
    found = [one for one in slowed.findings if one.id == "link-slow"]
    assert [one.node for one in found] == ["test-1"]
    print(found[0].read)
    rates = {flow.source: flow.gigabits_per_second for flow in slowed.flows if flow.gigabits_per_second}
    assert rates["test-1"] == pytest.approx(0.2, rel=0.15)


def test_all_reduce_runs_in_the_image_and_leaves_a_serving_deployment_alone(known: Project) -> None:
    refused = check(find_subject("lab"), disturb=False, collectives=True, report=silent)
    assert "could disturb what serves" in refused.left_out[0]
    assert refused.collectives == []
    told = check(find_subject("lab"), disturb=True, collectives=True, report=silent)
    assert told.left_out == []
    assert [(one.variant, one.backend) for one in told.collectives] == [("rail 0", "gloo")]
    assert told.collectives[0].best > 0
    assert known.ask("test-1") == "17 x 23 = 391"


@pytest.mark.usefixtures("known")
def test_a_stack_is_measured_twice_and_nothing_comes_from_a_cache() -> None:
    options = Options(decode_tokens=64, prefill_tokens=300, streams=(1, 4), repetitions=2, needle_tokens=(200,))
    for _ in range(2):
        target = find_target("lab", None, None, None, wanted_fields(options))
        done = run_bench(target, options, silent)
        assert done.is_result, done.reported.faults
        assert done.reported.prefill
        assert done.reported.prefill.cached_tokens == 0
        assert [doubt for doubt in done.reported.doubts if "this machine is too busy" not in doubt] == []
        assert done.setup.image_identity
        assert set(done.reported.nodes) == {"test-1", "test-2"}
        assert all(use.samples[-1].rail_bytes > 0 for use in done.reported.nodes.values())


@pytest.mark.usefixtures("known")
def test_traffic_over_the_wrong_interface_is_found() -> None:
    # The deployment is measured as if it had been asked for another interface, which its ranks do not use.
    options = Options(decode_tokens=32, prefill_tokens=200, streams=(2,), repetitions=1, quality=False)
    target = find_target("lab", None, None, None, wanted_fields(options))
    assert target.situation
    nodes = {
        name: node.model_copy(
            update={"rails": tuple(rail.model_copy(update={"interface": "mgmt0"}) for rail in node.rails)}
        )
        for name, node in target.situation.cluster.nodes.items()
    }
    cluster = target.situation.cluster.model_copy(update={"nodes": nodes})
    wrong = type(target)(
        target.name,
        target.servers,
        target.probes,
        type(target.situation)(**{**vars(target.situation), "cluster": cluster}),
        target.release,
    )
    doubts = run_bench(wrong, options, silent).reported.doubts
    assert any("test-2" in doubt and "does not use the fabric" in doubt for doubt in doubts)


def test_ten_planted_faults_are_ten_findings_and_no_others(known: Project) -> None:
    assert known.destroy("lab").code == 0
    before = {found.id for found in examine(patients(["test-1"], "test", None)).findings}
    assert before == set()
    place = {
        "image": known.on_node("test-1", "docker images --format '{{.Repository}}:{{.Tag}}' | head -1").strip(),
        "storage": known.cluster.storage_folder,
        "rail": known.cluster.nodes["test-1"].rails[0].address,
    }
    known.on_node("test-1", "ip link add eth9 type veth peer name eth9-end && ip link set eth9 up")
    try:
        for fault in FAULTS.values():
            known.on_node("test-1", fault.format_map(place))
        found = sorted(one.id for one in examine(patients(["test-1"], "test", None)).findings)
    finally:
        known.on_node("test-1", CURES.format_map(place), check=False)
    assert found == sorted(FAULTS)
