"""How reality stands to a Release: every verdict has its case, and what cannot be asked is never down."""

import copy
import json
from typing import Any

import pytest

from ops import status as ops_status
from ops.remote import NodeError
from ops.stacks import planned
from ops.status import stack_status
from ops.status_verb import _CODES
from spec.dockerfile import IDENTITY_LABEL
from spec.release import Release
from spec.standing import Standing, judge_release, ranks_on, status_request, worst
from spec.supervision import supervisor_command, supervisor_mounts

HEAD, WORKER = "gb10-lab-pool-one-rank0", "gb10-lab-pool-one-rank1"


@pytest.fixture(scope="module")
def release() -> Release:
    return planned("lab-pool")


def right_rank(release: Release, container: str) -> dict[str, Any]:
    """Returns what a node says of a rank that is as it should be."""
    group, rank = next((group, rank) for group in release.groups for rank in group.ranks if rank.container == container)
    mounts = (*rank.mounts, *supervisor_mounts(release, rank))
    return {
        "state": "running",
        "exit_code": 0,
        "generation": group.hash,
        "supervisor": {"state": "serving", "answer": "right" if rank.is_head else None, "memory": {}, "restarts": 0},
        "last_lines": ["supervisor: serving"],
        "seconds_since_start": 60.0,
        "silent": None,
        "made_from": {
            "image": release.image.reference,
            "image_is_named_so": True,
            "command": list(supervisor_command(release, group, rank)),
            "mounts": sorted([one.source, one.target, not one.read_only] for one in mounts),
            "network": "host",
            "restart": "unless-stopped",
        },
    }


def right_answers(release: Release) -> dict[str, dict[str, Any]]:
    """Returns what the nodes say where everything is as it should be."""
    assert release.image.chain
    assert release.router
    image = {
        "identity": "sha256:1",
        "layers": [],
        "architecture": "amd64",
        "labels": {IDENTITY_LABEL: release.image.chain.identity},
    }
    weights = {"complete": True, "manifest": "m", "size_bytes": 1, "why": None}
    members = {one.group: {"status": "UP", "requests": 0, "reason": ""} for one in release.router.members}
    router = {"state": "running", "image": release.router.image, "members": members}
    return {
        node: {
            "memory": {"available_bytes": 8 << 30, "total_bytes": 16 << 30},
            "claim": {"stack": release.stack, "group": ranks_on(release, node)[0][0].name, "since": "then"},
            "image": copy.deepcopy(image),
            "weights": {plan.name: dict(weights) for plan in release.weights},
            "ranks": {rank.container: right_rank(release, rank.container) for _, rank in ranks_on(release, node)},
            "router": router if node == release.router.node else None,
        }
        for node in release.nodes
    }


def only(standings: list[Standing]) -> Standing:
    """Returns the one that is not right."""
    (found,) = [one for one in standings if one.verdict != "right"]
    return found


def test_a_stack_that_is_as_planned_is_right(release: Release) -> None:
    standings = judge_release(release, right_answers(release))
    assert worst(one.verdict for one in standings) == "right"
    assert sorted({one.kind for one in standings}) == ["claim", "image", "rank", "router", "weights"]
    assert len([one for one in standings if one.kind == "rank"]) == 4


def test_a_node_that_cannot_be_asked_is_unknown_and_nothing_of_it_is_absent(release: Release) -> None:
    answers = right_answers(release) | {"lab-3": {"unknown": "lab-3 does not answer ssh"}}
    found = [one for one in judge_release(release, answers) if one.verdict != "right"]
    assert {one.verdict for one in found} == {"unknown"}
    assert {one.kind for one in found} == {"rank", "claim", "image", "weights"}
    assert all("does not answer ssh" in one.differs[0] for one in found)


def test_without_the_building_node_other_images_cannot_be_compared(release: Release) -> None:
    answers = right_answers(release) | {"lab-1": {"unknown": "off"}}
    images = [one for one in judge_release(release, answers) if one.kind == "image" and one.node != "lab-1"]
    assert {one.verdict for one in images} == {"unknown"}
    assert "lab-1, which built it, cannot be asked: off" in images[0].differs


@pytest.mark.parametrize(
    ("change", "verdict", "state", "words"),
    [
        ({"state": "absent", "made_from": None}, "absent", "no container", ""),
        ({"state": "ended", "exit_code": 137}, "wrong", "ended (137)", ""),
        ({"silent": "nothing listens there"}, "unknown", "serving?", "nothing listens there"),
        ({"supervisor": {"state": "gathering"}}, "wrong", "gathering", ""),
        ({"supervisor": {"state": "tripped", "cause": {"text": "below the floor"}}}, "wrong", "tripped", ""),
        ({"supervisor": {"state": "serving", "answer": "wrong"}}, "wrong", "serving", "known question is wrong"),
        ({"supervisor": {"state": "serving", "draining": True}}, "wrong", "draining", ""),
    ],
)
def test_a_rank_stands_as_its_node_says(
    release: Release, change: dict[str, Any], verdict: str, state: str, words: str
) -> None:
    answers = right_answers(release)
    answers["lab-1"]["ranks"][HEAD] |= change
    found = only(judge_release(release, answers))
    assert (found.kind, found.name, found.node, found.verdict, found.state) == (
        "rank",
        "one/0",
        "lab-1",
        verdict,
        state,
    )
    assert any(words in text for text in found.differs) or not words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": "gb10-serving/chain:0"}, "image is gb10-serving/chain:0, should be"),
        ({"image_is_named_so": False}, "it runs another image than the one that"),
        ({"network": "bridge"}, "network is bridge, should be host"),
        ({"restart": "no"}, "restart is no, should be unless-stopped"),
        ({"command": ["sleep", "1"]}, "it runs another program: sleep 1"),
        ({"mounts": []}, "it does not mount"),
    ],
)
def test_a_container_that_somebody_made_otherwise_is_wrong(
    release: Release, change: dict[str, Any], words: str
) -> None:
    answers = right_answers(release)
    answers["lab-1"]["ranks"][HEAD]["made_from"] |= change
    found = only(judge_release(release, answers))
    assert found.verdict == "wrong"
    assert any(words in text for text in found.differs)
    assert found.mend
    assert "--refresh --replace '**one-generation'" in found.mend


def test_another_generation_is_told_with_what_differs(release: Release) -> None:
    answers = right_answers(release)
    rank = answers["lab-2"]["ranks"][WORKER]
    request = json.loads(rank["made_from"]["command"][-1]) | {"generation": "0" * 64, "http_port": 9000}
    rank["generation"] = "0" * 64
    rank["made_from"]["command"][-1] = json.dumps(request)
    found = only(judge_release(release, answers))
    assert found.differs == (
        f"made from another plan (000000000000, planned {release.groups[0].hash[:12]}): generation, http_port differ",
    )
    assert found.mend == "./fleet pulumi up --stack lab-pool"


@pytest.mark.parametrize(
    ("part", "value", "verdict", "words"),
    [
        ("claim", None, "absent", ""),
        ("claim", {"stack": "x", "group": "g", "since": "then"}, "wrong", "held by x, group g since then"),
        ("image", {"identity": None, "labels": None}, "absent", ""),
        ("image", {"identity": "sha256:1", "labels": {}}, "wrong", "it is of chain None"),
        ("image", {"unknown": "no docker"}, "unknown", "no docker"),
    ],
)
def test_claim_and_image_stand_as_the_node_says(
    release: Release, part: str, value: Any, verdict: str, words: str
) -> None:
    answers = right_answers(release)
    answers["lab-4"][part] = value
    found = only(judge_release(release, answers))
    assert (found.kind, found.node, found.verdict) == (part, "lab-4", verdict)
    assert words in " ".join(found.differs)


def test_an_image_of_other_content_is_wrong(release: Release) -> None:
    answers = right_answers(release)
    answers["lab-4"]["image"]["identity"] = "sha256:2"
    assert only(judge_release(release, answers)).differs == ("its content is sha256:2, lab-1 built sha256:1",)


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"complete": False, "manifest": None, "why": "there is no receipt"}, "absent"),
        ({"complete": False, "why": "model.safetensors is 3 bytes"}, "wrong"),
    ],
)
def test_weights_stand_as_their_receipt_says(release: Release, change: dict[str, Any], verdict: str) -> None:
    answers = right_answers(release)
    answers["lab-2"]["weights"]["lab"] |= change
    found = only(judge_release(release, answers))
    assert (found.kind, found.verdict, found.differs) == ("weights", verdict, (change["why"],))


def test_a_router_that_leaves_a_member_out_is_wrong(release: Release) -> None:
    answers = right_answers(release)
    answers["lab-1"]["router"] = copy.deepcopy(answers["lab-1"]["router"])
    answers["lab-1"]["router"]["members"]["two"]["status"] = "DOWN"
    assert only(judge_release(release, answers)).differs == ("two is DOWN",)
    answers["lab-1"]["router"] = {"state": "absent", "image": None, "members": {}}
    assert only(judge_release(release, answers)).verdict == "absent"


def test_all_nodes_are_asked_at_once_and_one_that_fails_hides_no_other(
    release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = right_answers(release)

    def run(connection: Any, _: str, verb: str, asked: dict[str, Any], **__: int) -> Any:
        assert verb == "status"
        assert asked == status_request(release, connection.node)
        if connection.node == "lab-2":
            raise NodeError("lab-2 does not answer ssh")
        return answers[connection.node]

    monkeypatch.setattr(ops_status, "run_on_node", run)
    status = stack_status(release)
    assert status.verdict == "unknown"
    assert _CODES[status.verdict] == 4
    assert status.memory["lab-2"] is None
    data = json.loads(json.dumps(status.as_data()))
    assert data["front"] == "http://198.51.100.11:8080/v1"
    assert data["endpoints"] == {"one": "http://198.51.100.11:8000/v1", "two": "http://198.51.100.13:8000/v1"}


def test_the_worst_verdict_counts() -> None:
    assert worst(["right", "unknown"]) == "unknown"
    assert worst(["unknown", "absent"]) == "absent"
    assert worst(["absent", "wrong", "right"]) == "wrong"
    assert worst([]) == "right"
