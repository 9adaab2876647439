"""The dependency graph of a deployment: what exists, what waits for what, what is replaced with what."""

import json
from itertools import pairwise
from typing import Any

import pulumi
import pytest

from ops.runtime_package import RuntimePackage
from runtime.rank.request import RankRequest
from spec.party import Party
from tests.graph.conftest import Graph, RunProgram

HEAD = "main-lab-1-rank0"
WORKER = "main-lab-2-rank1"


def run_lab(run_program: RunProgram, config: dict[str, Any], preview: bool) -> Graph:
    return run_program("lab", config, preview)


def request_of(container: dict[str, Any]) -> dict[str, Any]:
    """Returns what the supervisor of a rank is asked."""
    return json.loads(container["command"][-1])


def test_every_logical_name_is_unique(run_program: RunProgram, lab_config: dict[str, Any], preview: bool) -> None:
    assert run_lab(run_program, lab_config, preview).duplicates == []


def test_a_rank_runs_through_the_provider_of_its_node(
    run_program: RunProgram, lab_config: dict[str, Any], preview: bool
) -> None:
    graph = run_lab(run_program, lab_config, preview)
    ranks = graph.of_type("container:Container")
    assert {name: rank.provider for name, rank in ranks.items()} == {HEAD: "lab-1-docker", WORKER: "lab-2-docker"}
    provider = graph.resources["lab-2-docker"].inputs
    assert provider["host"] == "ssh://root@198.51.100.12:22"
    assert any("KnownHostsCommand=/bin/echo %H ssh-ed25519" in word for word in json.loads(provider["sshOpts"]))


def test_nothing_starts_before_every_preflight_and_claim(
    run_program: RunProgram, lab_config: dict[str, Any], preview: bool
) -> None:
    graph = run_lab(run_program, lab_config, preview)
    before_claims = {f"main-{node}-preflight" for node in ("lab-1", "lab-2")}
    claims = {f"main-{node}-claim" for node in ("lab-1", "lab-2")}
    for claim in claims:
        assert before_claims <= graph.all_dependencies(claim)
    assert claims <= graph.resources["main-generation"].dependencies
    for rank in (HEAD, WORKER):
        assert claims | before_claims | {"main-generation"} <= graph.all_dependencies(rank)


def test_the_head_waits_for_the_workers_and_readiness_for_all(
    run_program: RunProgram, lab_config: dict[str, Any], preview: bool
) -> None:
    graph = run_lab(run_program, lab_config, preview)
    assert WORKER in graph.resources[HEAD].dependencies
    assert HEAD not in graph.all_dependencies(WORKER)
    assert {HEAD, WORKER} <= graph.resources["main-ready"].dependencies
    assert {HEAD, WORKER} <= graph.resources["main-ready"].property_dependencies["triggers"]


def test_a_rank_takes_its_image_from_the_generation(
    run_program: RunProgram, lab_config: dict[str, Any], preview: bool
) -> None:
    """A plain text input from one delete-before-replace root is what makes the whole group stop first."""
    graph = run_lab(run_program, lab_config, preview)
    generation = graph.resources["main-generation"]
    assert generation.delete_before_replace
    assert generation.replace_on_changes == ["triggers[*]"]
    for rank in (HEAD, WORKER):
        assert graph.resources[rank].property_dependencies["image"] == {"main-generation"}
        assert graph.resources[rank].delete_before_replace
        assert graph.resources[rank].before_create_hooks == ["prepare-rank"]
    roots = [
        name for name, found in graph.resources.items() if found.delete_before_replace and name not in (HEAD, WORKER)
    ]
    assert roots == ["main-generation"]


def test_in_a_preview_the_image_of_a_new_rank_is_unknown(run_program: RunProgram, lab_config: dict[str, Any]) -> None:
    assert isinstance(run_lab(run_program, lab_config, True).resources[HEAD].inputs["image"], pulumi.output.Unknown)
    image = run_lab(run_program, lab_config, False).resources[HEAD].inputs["image"]
    assert image.startswith("gb10-serving/chain:")


def test_claims_do_not_depend_on_what_the_group_runs(run_program: RunProgram, lab_config: dict[str, Any]) -> None:
    """A claim that changed with the hash would be exchanged while old ranks still run."""
    first = run_lab(run_program, lab_config, False)
    lab_config["engine"]["max_model_len"] += 1
    second = run_lab(run_program, lab_config, False)
    claims = [name for name in first.resources if name.endswith("-claim")]
    assert len(claims) == 2
    for claim in claims:
        assert first.resources[claim].inputs == second.resources[claim].inputs
    assert first.resources["main-generation"].inputs != second.resources["main-generation"].inputs
    for node in ("lab-1", "lab-2"):
        name = f"main-{node}-preflight"
        assert first.resources[name].inputs["stdin"] != second.resources[name].inputs["stdin"]


def test_the_preflight_judges_the_image_and_weights_that_were_sent(
    run_program: RunProgram, lab_config: dict[str, Any]
) -> None:
    graph = run_lab(run_program, lab_config, False)
    checks = json.loads(graph.resources["main-lab-2-preflight"].inputs["stdin"])["checks"]
    assert checks["image"]["identity"] == "sha256:1"
    assert checks["image"]["layers"] == ["sha256:a"]
    assert checks["weights"][0]["manifest"] == "m"
    assert checks["ports"] == [7717]
    head = json.loads(graph.resources["main-lab-1-preflight"].inputs["stdin"])["checks"]
    assert head["ports"] == [7717, 8000, 29500]


def test_one_transfer_brings_the_weights_to_all_nodes_and_each_has_a_receipt(
    run_program: RunProgram, lab_config: dict[str, Any], preview: bool
) -> None:
    graph = run_lab(run_program, lab_config, preview)
    transfer = json.loads(graph.resources["weights-lab"].inputs["stdin"])
    assert [node["connection"]["node"] for node in transfer["nodes"]] == ["lab-1", "lab-2"]
    assert [node["address"] for node in transfer["nodes"]] == ["198.51.100.75", "198.51.100.76"]
    assert {"lab-1-reached", "lab-2-reached"} <= graph.resources["weights-lab"].dependencies
    for node in ("lab-1", "lab-2"):
        assert graph.resources[f"weights-lab-{node}"].dependencies == {"weights-lab"}
        assert f"weights-lab-{node}" in graph.resources[f"main-{node}-preflight"].dependencies


def test_image_and_weights_are_brought_to_the_same_parties(run_program: RunProgram, lab_config: dict[str, Any]) -> None:
    graph = run_lab(run_program, lab_config, False)
    weights, shared, on_node = (
        json.loads(graph.resources[name].inputs["stdin"]) for name in ("weights-lab", "image-share", "image-lab-2")
    )
    first, second = [Party.model_validate(node) for node in weights["nodes"]]
    assert (second.node, second.switch, second.storage_folder) == ("lab-2", "virtual", "/var/lib/gb10-serving")
    assert shared["receivers"] == weights["nodes"]
    assert Party.model_validate(shared["source"]) == Party.model_validate(on_node["source"]) == first
    assert Party.model_validate(on_node["node"]) == second


def test_another_node_changes_the_transfer_and_no_other_nodes_receipt(
    run_program: RunProgram, lab_config: dict[str, Any]
) -> None:
    first = run_lab(run_program, lab_config, False)
    lab_config["groups"] = {"main": ["lab-1", "lab-2", "lab-3", "lab-4"]}
    second = run_lab(run_program, lab_config, False)
    assert first.resources["weights-lab"].inputs != second.resources["weights-lab"].inputs
    for node in ("lab-1", "lab-2"):
        assert first.resources[f"weights-lab-{node}"].inputs == second.resources[f"weights-lab-{node}"].inputs
    assert "weights-lab-lab-3" in second.resources


def test_a_rank_is_set_up_so_that_the_provider_sees_no_false_change(
    run_program: RunProgram, lab_config: dict[str, Any], preview: bool
) -> None:
    worker = run_lab(run_program, lab_config, preview).resources[WORKER].inputs
    assert worker["networkMode"] == "host"
    assert worker["ipcMode"] == "host"
    assert worker["destroyGraceSeconds"] == 30
    assert worker["mustRun"] is True
    assert "wait" not in worker or worker["wait"] is False
    assert {limit["name"]: limit["hard"] for limit in worker["ulimits"]} == {
        "nofile": 20000,
        "memlock": 8388608,
        "core": 0,
    }
    assert "gpus" not in worker
    assert worker["restart"] == "unless-stopped"
    assert "init" not in worker, "the supervisor is the first process"
    assert "--headless" in request_of(worker)["argv"]


def test_the_image_is_built_step_by_step_on_one_node_and_then_handed_on(
    run_program: RunProgram, lab_config: dict[str, Any], preview: bool
) -> None:
    graph = run_lab(run_program, lab_config, preview)
    steps = sorted(name for name in graph.resources if name.startswith("image-0"))
    built = ["image-base", *steps, "image-verify", "image-share"]
    assert len(steps) >= 3
    for before, after in pairwise(built):
        assert before in graph.resources[after].dependencies
    assert graph.resources["image-base"].dependencies == {"lab-1-reached"}
    for node in ("lab-1", "lab-2"):
        assert "image-share" in graph.resources[f"image-{node}"].dependencies
        assert f"image-{node}" in graph.resources[f"main-{node}-preflight"].dependencies
    assert f"{HEAD}" not in graph.all_dependencies("image-share")


def test_a_step_says_what_goes_into_it(run_program: RunProgram, lab_config: dict[str, Any], preview: bool) -> None:
    request = json.loads(run_lab(run_program, lab_config, preview).resources["image-02-backend-gate"].inputs["stdin"])
    assert request["connection"]["node"] == "lab-1"
    assert all(name.startswith("edit of vllm/") for name in request["changes"])
    assert len(request["changes"]) == 2
    assert "anchor" not in repr(request), "the text of an edit belongs to patches/, not to the state"


def test_an_image_may_be_built_on_a_node_without_a_rank(
    run_program: RunProgram, lab_config: dict[str, Any], preview: bool
) -> None:
    lab_config["groups"] = {"main": ["lab-2", "lab-3"]}
    graph = run_lab(run_program, lab_config, preview)
    assert "image-lab-1" not in graph.resources
    assert "main-lab-1-claim" not in graph.resources
    assert not [name for name in graph.resources if name.startswith("weights-") and name.endswith("-lab-1")]
    assert graph.resources["image-base"].dependencies == {"lab-1-reached"}


def test_one_node_needs_no_rendezvous(run_program: RunProgram, lab_config: dict[str, Any], preview: bool) -> None:
    lab_config["groups"] = {"main": ["lab-1"]}
    graph = run_program("lab-tp1", lab_config, preview)
    assert list(graph.of_type("container:Container")) == [HEAD]
    assert "--nnodes" not in request_of(graph.resources[HEAD].inputs)["argv"]


def test_two_groups_share_nodes_image_and_weights_but_no_root(
    run_program: RunProgram, lab_config: dict[str, Any], preview: bool
) -> None:
    lab_config["groups"] = {"a": ["lab-1", "lab-2"], "b": ["lab-3", "lab-4"]}
    graph = run_program("lab-pool", lab_config, preview)
    assert "b-generation" not in graph.all_dependencies("a-lab-1-rank0")
    assert "a-generation" not in graph.all_dependencies("b-lab-3-rank0")
    assert len(graph.of_type("providers:docker")) == 4


def test_nothing_holds_an_output_turned_into_text(
    run_program: RunProgram, lab_config: dict[str, Any], preview: bool
) -> None:
    graph = run_lab(run_program, lab_config, preview)
    assert "Calling __str__" not in repr(graph.resources)


def test_a_release_is_kept_once_every_group_is_ready(
    run_program: RunProgram, lab_config: dict[str, Any], preview: bool
) -> None:
    lab_config["groups"] = {"a": ["lab-1", "lab-2"], "b": ["lab-3", "lab-4"]}
    graph = run_program("lab-pool", lab_config, preview)
    assert graph.resources["release-history"].dependencies == {"a-ready", "b-ready"}
    assert graph.resources["release-history"].inputs["addPreviousOutputInEnv"] is True
    assert graph.resources["release-begun"].dependencies == set()
    kept = json.loads(graph.resources["release-history"].inputs["stdin"])
    assert graph.resources["release-begun"].inputs["create"] == f"echo {kept['hash']}"
    assert json.loads(kept["release"])["stack"] == "lab-pool"


def test_every_rank_knows_its_peers_and_its_generation(
    run_program: RunProgram, lab_config: dict[str, Any], preview: bool
) -> None:
    graph = run_lab(run_program, lab_config, preview)
    head, worker = (request_of(graph.resources[name].inputs) for name in (HEAD, WORKER))
    assert head["peers"] == worker["peers"]
    assert [peer["address"] for peer in head["peers"]] == ["198.51.100.75", "198.51.100.76"]
    assert (head["rank"], worker["rank"]) == (0, 1)
    assert head["generation"] == worker["generation"] == graph.resources["main-generation"].inputs["triggers"][0]
    assert head["shared_arguments"] == worker["shared_arguments"]
    assert RankRequest.from_plain(worker).own.name == "rank 1 on lab-2"


def test_another_runtime_is_no_change_to_a_group(
    run_program: RunProgram, lab_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank keeps the runtime that its container was made with; nothing of the runtime's hash is in the graph."""
    first = run_lab(run_program, lab_config, False)
    monkeypatch.setattr("ops.remote.runtime_package", lambda: RuntimePackage("f" * 64, b""))
    second = run_lab(run_program, lab_config, False)
    for name, found in first.resources.items():
        assert found.inputs == second.resources[name].inputs


@pytest.mark.parametrize("name", ["apiKey", "hfToken"])
def test_another_secret_is_another_generation_and_stands_nowhere(
    run_program: RunProgram, lab_config: dict[str, Any], name: str
) -> None:
    graphs = [run_program("lab", lab_config, False, {name: value}) for value in ("correct horse", "battery staple")]
    first, second = (graph.resources["main-generation"].inputs["triggers"] for graph in graphs)
    assert first[0] == second[0]
    assert first[1] != second[1]
    holders = {found.name for found in graphs[0].resources.values() if "correct horse" in repr(found.inputs)}
    assert holders == {"main-lab-1-secrets", "main-lab-2-secrets"}
    assert all(graphs[0].resources[holder].secret_inputs == {"stdin"} for holder in holders)


def test_all_nodes_of_a_group_are_taken_before_a_claim_stands_for_one(
    run_program: RunProgram, lab_config: dict[str, Any], preview: bool
) -> None:
    graph = run_lab(run_program, lab_config, preview)
    taken = graph.resources["main-claims"]
    asked = json.loads(taken.inputs["stdin"])
    assert [node["connection"]["node"] for node in asked["nodes"]] == ["lab-1", "lab-2"]
    assert taken.inputs["delete"].endswith("free-nodes")
    assert taken.dependencies == {"main-lab-1-preflight", "main-lab-2-preflight"}
    assert not taken.delete_before_replace
    for node in ("lab-1", "lab-2"):
        assert "main-claims" in graph.resources[f"main-{node}-claim"].dependencies


def test_a_parked_deployment_has_image_and_weights_and_nothing_of_a_group(
    run_program: RunProgram, lab_config: dict[str, Any], preview: bool
) -> None:
    active = run_lab(run_program, lab_config, preview)
    parked = run_lab(run_program, lab_config | {"active": False}, preview)
    gone = set(active.resources) - set(parked.resources)
    assert gone == {name for name in active.resources if name == "main" or name.startswith("main-")}
    assert set(parked.resources) <= set(active.resources)
    for name in ("image-lab-1", "image-lab-2", "weights-lab-lab-1", "weights-lab-lab-2", "image-verify"):
        assert preview or parked.resources[name].inputs == active.resources[name].inputs
    kept = json.loads(parked.resources["release-history"].inputs["stdin"])
    assert kept["release"] is None, "a parked Release is none to go back to"


def pool_config(lab_config: dict[str, Any]) -> dict[str, Any]:
    return lab_config | {
        "groups": {"a": ["lab-1", "lab-2"], "b": ["lab-3"], "c": ["lab-4"]},
        "router": {"node": "lab-1"},
        "acknowledged": {"groups-are-of-one-size": "a test"},
    }


def test_the_router_waits_for_no_group_and_its_proof_for_all(
    run_program: RunProgram, lab_config: dict[str, Any], preview: bool
) -> None:
    graph = run_program("lab-pool", pool_config(lab_config), preview)
    router = graph.resources["router-lab-1"]
    assert router.provider == "lab-1-docker"
    assert router.before_create_hooks == ["clear-router"]
    assert "router-settings" in router.dependencies
    assert not {name for name in graph.all_dependencies("router-lab-1") if name.endswith(("-ready", "-generation"))}
    assert {"a-ready", "b-ready", "c-ready", "router-lab-1"} <= graph.resources["router-ready"].dependencies
    for group in "abc":
        assert "router-settings" in graph.resources[f"{group}-claims"].dependencies, (
            "a port that is taken stops nothing"
        )


def test_members_take_turns_before_anything_of_them_is_stopped(
    run_program: RunProgram, lab_config: dict[str, Any], preview: bool
) -> None:
    graph = run_program("lab-pool", pool_config(lab_config), preview)
    for group, before in (("a", []), ("b", ["a"]), ("c", ["a", "b"])):
        turn = graph.resources[f"{group}-turn"]
        assert f"{group}-turn" in graph.resources[f"{group}-generation"].dependencies
        request = json.loads(turn.inputs["stdin"])
        assert [member["group"] for member in request["before"]] == before
        assert not {name for name in graph.all_dependencies(f"{group}-turn") if name.endswith("-generation")}


def test_another_settings_file_is_no_other_container(run_program: RunProgram, lab_config: dict[str, Any]) -> None:
    config = pool_config(lab_config)
    first = run_program("lab-pool", config, False)
    config["groups"] = {"a": ["lab-2", "lab-1"], "b": ["lab-3"], "c": ["lab-4"]}
    second = run_program("lab-pool", config, False)
    assert first.resources["router-settings"].inputs != second.resources["router-settings"].inputs
    assert first.resources["router-lab-1"].inputs == second.resources["router-lab-1"].inputs
    both = first.resources.keys() & second.resources.keys()
    changed = {name for name in both if first.resources[name].inputs != second.resources[name].inputs}
    assert {name for name in changed if name.startswith(("b-", "c-"))} == {"b-turn", "c-turn"}


def test_a_head_behind_a_router_has_time_to_drain(run_program: RunProgram, lab_config: dict[str, Any]) -> None:
    graph = run_program("lab-pool", pool_config(lab_config), False)
    assert graph.resources["a-lab-1-rank0"].inputs["destroyGraceSeconds"] == 30 + 120
    assert graph.resources["a-lab-2-rank1"].inputs["destroyGraceSeconds"] == 30
    assert request_of(graph.resources["a-lab-1-rank0"].inputs)["front"]["port"] == 7718
    assert request_of(graph.resources["a-lab-2-rank1"].inputs)["front"] is None
    assert 7718 in json.loads(graph.resources["a-lab-1-preflight"].inputs["stdin"])["checks"]["ports"]
