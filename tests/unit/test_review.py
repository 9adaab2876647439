"""What a review says of a change: over real stacks, changed one thing at a time."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from typer.testing import CliRunner

from ops.cli import app
from ops.markup import document, element
from ops.places import PROJECT
from ops.preview import steps_of
from ops.review import Outcome, Reviewed, claims_in
from ops.review_markdown import MOST_CHARACTERS, markdown
from ops.review_page import page
from ops.review_verbs import REFUSED, RESTARTS
from ops.stacks import CATALOG, planned
from spec.catalog import read_stack
from spec.compare import compare
from spec.conflicts import Claim, find_conflicts
from spec.difference import flags_of
from spec.plan import plan_release
from spec.release import ChainPlan, Release
from spec.review import GroupReview, NodeReview, ResourceStep, Review

REFERENCES = CATALOG.references()


def changed(stack: str, **settings: Any) -> Release:
    """Plans a stack with other settings of its file; those of `engine` are merged."""
    config = read_stack(PROJECT, stack)
    engine = settings.pop("engine", {})
    return plan_release(stack, {**config, **settings, "engine": {**config["engine"], **engine}}, CATALOG)


def reviewed(before: Release | None, after: Release, *steps: ResourceStep) -> Review:
    return compare(before, after, REFERENCES, steps or None)


def group(found: Review, name: str) -> GroupReview:
    return next(one for one in found.groups if one.name == name)


def node(found: Review, name: str) -> NodeReview:
    return next(one for one in found.nodes if one.node == name)


def test_a_changed_flag_restarts_the_group_and_shows_old_and_new() -> None:
    found = reviewed(changed("qwen-tp4", engine={"max_num_seqs": 16}), planned("qwen-tp4"))
    main = group(found, "main")
    assert main.effect == "restarts"
    assert [(one.name, one.before, one.after) for one in main.changes] == [("--max-num-seqs", "16", "32")]
    assert all(one.effect == "restarts" and not one.changes and one.claim == "kept" for one in found.nodes)
    assert not any(one.new_image or one.new_weights for one in found.nodes)
    assert found.interrupts


def test_the_downtime_is_that_of_the_reference_with_the_same_model_and_nodes() -> None:
    found = reviewed(changed("qwen-tp4", engine={"max_num_seqs": 16}), planned("qwen-tp4"))
    downtime = group(found, "main").downtime
    assert downtime is not None
    assert downtime.sources == ("seed-000/qwen_tp4_ep",)
    assert (downtime.low_seconds, downtime.high_seconds) == (720, 750)


def test_where_nobody_measured_a_start_no_time_is_given() -> None:
    assert group(reviewed(None, planned("lab")), "main").downtime is None


def test_what_only_the_controller_waits_for_restarts_nothing() -> None:
    found = reviewed(planned("lab"), changed("lab", kept_releases=3))
    assert group(found, "main").effect == "keeps running"
    assert not found.interrupts
    assert [(one.name, one.before, one.after) for one in found.settings] == [("kept_releases", "10", "3")]


def test_a_smaller_cache_shows_memory_and_tokens_before_and_after() -> None:
    found = reviewed(planned("glm53-tp4"), changed("glm53-tp4", engine={"kv_cache_memory_bytes": "8 GiB"}))
    main, head = group(found, "main"), node(found, "gb10-1")
    assert main.kv_before is not None
    assert main.kv_after is not None
    assert main.kv_before.bytes_per_rank == 2 * main.kv_after.bytes_per_rank
    assert main.kv_before.tokens > main.kv_after.tokens
    assert head.memory_before is not None
    assert head.memory_after is not None
    assert head.memory_after.parts["KV cache"] == 8 << 30
    assert head.memory_after.available_share_low > head.memory_before.available_share_low


def test_one_more_pair_leaves_the_others_running() -> None:
    after = planned("qwen-pool")
    groups = {name: [rank.node for rank in one.ranks] for one in after.groups if (name := one.name) != "pair-c"}
    found = reviewed(changed("qwen-pool", groups=groups), after)
    assert [one.effect for one in found.groups] == ["keeps running", "keeps running", "starts"]
    assert not found.interrupts
    assert [one.node for one in found.nodes if one.claim == "taken"] == ["gb10-5", "gb10-6"]
    assert found.weights[0].nodes == ("gb10-5", "gb10-6")
    assert found.weights[0].moved_bytes == 2 * (found.weights[0].size_bytes or 0) > 0


def test_a_group_that_goes_gives_its_nodes_up() -> None:
    found = reviewed(planned("lab-pool"), changed("lab-pool", groups={"one": ["lab-1", "lab-2"]}))
    assert group(found, "two").effect == "stops"
    assert [one.node for one in found.nodes if one.claim == "given up"] == ["lab-3", "lab-4"]
    assert found.interrupts


def test_a_rank_that_moves_is_named_on_both_nodes() -> None:
    found = reviewed(planned("lab"), changed("lab", groups={"main": ["lab-1", "lab-3"]}))
    assert "ranks on lab-1, lab-3 instead of lab-1, lab-2" in group(found, "main").because
    assert (node(found, "lab-2").effect, node(found, "lab-2").claim) == ("stops", "given up")
    assert (node(found, "lab-3").effect, node(found, "lab-3").claim) == ("starts", "taken")


def without_step(release: Release, position: int) -> Release:
    """Returns a Release from before a step of its chain was added, with all that follows from it."""
    chain = release.image.chain
    assert chain is not None
    steps = [
        step.model_copy(update={"name": f"{number:02d}-{step.name.partition('-')[2]}", "identity": f"old {number}"})
        if number > position
        else step
        for number, step in enumerate((one for one in chain.steps if one is not chain.steps[position]), start=1)
    ]
    old = ChainPlan(**{**dict(chain), "steps": tuple(steps)})
    image = release.image.model_copy(update={"chain": old, "reference": "gb10-serving/chain:old"})
    return release.model_copy(update={"image": image})


def test_an_added_step_is_new_and_those_after_it_follow() -> None:
    after = planned("glm53-tp4")
    found = reviewed(without_step(after, 3), after).image
    assert [step.what for step in found.steps] == ["same", "same", "same", "new", "follows", "follows"]
    assert found.steps[3].changes


def test_a_rank_that_pulumi_replaces_restarts_its_group_whatever_the_releases_say() -> None:
    release = planned("lab-pool")
    step = ResourceStep(
        name="two-lab-4-rank1", kind="docker:index/container:Container", operation="replace", because=("image",)
    )
    found = reviewed(release, release, step)
    assert group(found, "one").effect == "keeps running"
    assert group(found, "two").effect == "restarts"
    assert node(found, "lab-4").resources == (step,)
    assert "Pulumi replaces two-lab-4-rank1: image" in group(found, "two").because


def test_a_preview_is_read_with_its_operations_and_reasons() -> None:
    told = {
        "steps": [
            {"op": "same", "urn": "urn:pulumi:lab::gb10-serving::pulumi:pulumi:Stack::gb10-serving-lab"},
            {
                "op": "replace",
                "urn": "urn:pulumi:lab::gb10-serving::a:b:C$docker:index/container:Container::main-lab-1-rank0",
                "replaceReasons": ["image"],
                "diffReasons": ["image", "labels"],
            },
        ]
    }
    assert steps_of(told) == (
        ResourceStep(
            name="main-lab-1-rank0",
            kind="docker:index/container:Container",
            operation="replace",
            because=("image", "labels"),
        ),
    )


def test_two_stacks_on_one_node_are_named() -> None:
    found = find_conflicts([planned("qwen-tp4"), planned("qwen-pool")], ())
    assert [one.nodes for one in found] == [("gb10-1", "gb10-2"), ("gb10-3", "gb10-4")]
    assert found[0].stacks == ("qwen-pool", "qwen-tp4")
    assert "group pair-a" in found[0].text


def test_a_node_that_another_stack_holds_is_a_conflict_unless_that_stack_is_reviewed_too() -> None:
    release = planned("lab")
    connection = release.nodes["lab-2"].connection.model_dump(mode="json")
    request = {"connection": connection, "stack": "other", "group": "main"}
    claims = claims_in(
        [
            {"urn": "a", "inputs": {"create": ".venv/bin/python -m ops.tasks claim", "stdin": json.dumps(request)}},
            {"urn": "b", "inputs": {"create": ".venv/bin/python -m ops.tasks preflight", "stdin": "{}"}},
            {"urn": "c"},
        ]
    )
    found = find_conflicts([release], claims)
    assert [(one.nodes, one.stacks) for one in found] == [(("lab-2",), ("lab", "other"))]
    moved = changed("lab-tp1").model_copy(update={"stack": "other"})
    assert find_conflicts([moved, release], claims)[0].nodes == ("lab-1",)
    assert find_conflicts([release], [Claim(stack="lab", group="main", node="x", machine=claims[0].machine)]) == ()


def test_a_node_that_changes_groups_within_its_stack_is_a_conflict() -> None:
    release = planned("lab")
    address = release.nodes["lab-2"].connection
    held = [Claim(stack="lab", group="pair", node="lab-2", machine=f"{address.address}:{address.port}")]
    (found,) = find_conflicts([release], held)
    assert found.nodes == ("lab-2",)
    assert found.stacks == ("lab", "lab")
    assert "run group pair of lab now" in found.text
    assert "`active: false` first" in found.text


def test_flags_are_read_with_all_their_values() -> None:
    command = ("vllm", "serve", "/model", "--port=80", "--eager", "--lora", "a", "b", "--lora", "c")
    assert flags_of(command) == {
        "program": "vllm serve /model",
        "--port": "80",
        "--eager": "(set)",
        "--lora": "a b c",
    }


def outcome(found: Review) -> Reviewed:
    return Reviewed((Outcome(found.stack, found, None),), ())


def test_markdown_fits_a_comment_however_much_changed() -> None:
    environment = {f"GB10_{number}": "x" * 200 for number in range(400)}
    text = markdown(outcome(reviewed(planned("lab"), changed("lab", environment=environment))))
    assert len(text) <= MOST_CHARACTERS
    assert text.rstrip().endswith("`--page`.*")


def test_a_text_of_a_stack_file_breaks_neither_table_nor_page() -> None:
    nasty = "a|b <script>alert(1)</script>"
    found = outcome(reviewed(planned("lab"), changed("lab", environment={"NASTY": nasty})))
    rows = [line for line in markdown(found).splitlines() if "NASTY" in line]
    assert rows == ["| `NASTY` | – | `a\\|b <script>alert(1)</script>` |"]
    assert "<script>" not in page(found)
    assert "&lt;script&gt;" in page(found)


def test_elements_keep_texts_in_order() -> None:
    assert document(element("p", "a", element("b", "c"), "<d>", None, class_="x")) == (
        '<!doctype html>\n<p class="x">a<b>c</b>&lt;d&gt;</p>\n'
    )


@pytest.mark.parametrize("stack", ["lab", "glm53", "qwen-pool", "glm53-ethernet-offline", "glm53-h200"])
def test_the_page_has_a_graph_for_each_group_and_names_each_node(stack: str) -> None:
    release = planned(stack)
    text = page(outcome(reviewed(None, release)))
    assert text.count("<svg") == len(release.groups)
    assert "<script" not in text
    for name in release.rank_nodes:
        assert name in text
    drawings = [part.partition("</svg>")[0] + "</svg>" for part in text.split("<svg")[1:]]
    for drawing in drawings:
        ElementTree.fromstring(f"<svg{drawing}")


def save(folder: Path, release: Release) -> str:
    path = folder / "deployed.json"
    path.write_text(json.dumps({"hash": release.hash, **release.model_dump(mode="json")}))
    return str(path)


def test_exit_codes_tell_restart_from_no_restart(tmp_path: Path) -> None:
    run = CliRunner().invoke
    same = save(tmp_path, planned("lab"))
    assert run(app, ["review", "lab", "--deployed", same]).exit_code == 0
    other = save(tmp_path, changed("lab", engine={"max_model_len": 400}))
    told = run(app, ["review", "lab", "--deployed", other, "--json", "--page", str(tmp_path / "page.html")])
    assert told.exit_code == RESTARTS
    assert json.loads(told.stdout)["verdict"] == "restart"
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_a_stack_that_cannot_work_is_refused_with_the_reason() -> None:
    refused = Reviewed((Outcome("lab", None, "Pulumi.lab.yaml: key: 1\n    rule\n    Way out: another"),), ())
    assert refused.is_refused
    assert refused.as_data()["verdict"] == "refused"
    assert "Way out: another" in markdown(refused)
    assert "Way out: another" in page(refused)
    assert REFUSED not in (0, 1, 2, 3, RESTARTS)


def test_a_stack_is_compared_with_another_checkout(tmp_path: Path) -> None:
    for name in ("catalog", "patches"):
        (tmp_path / name).symlink_to(PROJECT / name)
    run = CliRunner().invoke
    new = run(app, ["review", "lab", "--base", str(tmp_path), "--json"])
    assert new.exit_code == 0
    assert json.loads(new.stdout)["verdict"] == "no restart"
    text = (PROJECT / "Pulumi.lab.yaml").read_text()
    (tmp_path / "Pulumi.lab.yaml").write_text(text)
    same = run(app, ["review", "lab", "--base", str(tmp_path), "--json"])
    assert json.loads(same.stdout)["verdict"] == "nothing changes"
    (tmp_path / "Pulumi.lab.yaml").write_text(text.replace("max_num_seqs: 8", "max_num_seqs: 4"))
    assert run(app, ["review", "lab", "--base", str(tmp_path)]).exit_code == RESTARTS


def test_the_workflow_reviews_each_changed_stack_alone(tmp_path: Path) -> None:
    """Its shell text is run as it is, with this checkout as branch and one that differs in one stack as base."""
    steps = yaml.safe_load((PROJECT / "docs/examples/review.yaml").read_text())["jobs"]["review"]["steps"]
    text = next(step["run"] for step in steps if step.get("id") == "review")
    base, branch = tmp_path / "base", tmp_path / "branch"
    for folder in (base, branch):
        folder.mkdir()
        for name in ("catalog", "patches"):
            (folder / name).symlink_to(PROJECT / name)
        for stack in ("lab", "lab-pool"):
            (folder / f"Pulumi.{stack}.yaml").write_text((PROJECT / f"Pulumi.{stack}.yaml").read_text())
    (branch / "fleet").write_text(f'#!/bin/sh\nexec {PROJECT}/fleet "$@"\n')
    (branch / "fleet").chmod(0o755)
    changed_file = base / "Pulumi.lab-pool.yaml"
    changed_file.write_text(changed_file.read_text().replace("max_num_seqs: 8", "max_num_seqs: 4"))
    output = tmp_path / "output"
    environment = {**os.environ, "GITHUB_OUTPUT": str(output)}
    subprocess.run(["bash", "-e", "-c", text], cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert output.read_text() == f"worst={RESTARTS}\n"
    assert [path.name for path in (tmp_path / "pages").iterdir()] == ["lab-pool.html"]
    assert "lab-pool: groups one, two restart" in (tmp_path / "fitting.md").read_text()


def test_parking_stops_the_groups_and_bringing_them_back_moves_neither_image_nor_weights() -> None:
    active, parked = planned("lab-pool"), changed("lab-pool", active=False)
    there, back = reviewed(active, parked), reviewed(parked, active)
    assert {one.effect for one in there.groups} == {"stops"}
    assert there.groups[0].because == ("the stack file parks the deployment",)
    assert {one.claim for one in there.nodes} == {"given up"}
    assert there.interrupts
    assert [(one.name, one.before, one.after) for one in there.settings] == [("active", "True", "False")]
    assert {one.effect for one in back.groups} == {"starts"}
    assert {one.claim for one in back.nodes} == {"taken"}
    assert not any(one.new_image or one.new_weights for one in back.nodes)
