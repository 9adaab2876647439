"""The command line: help everywhere, exit codes that mean something, JSON where a program would read it."""

import ipaddress
import itertools
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ops import stack_state
from ops.cli import app
from ops.errors import OperationError
from ops.pulumi import named_stack
from ops.runtime_package import runtime_package
from ops.testing import SHARES, run_tests
from spec.errors import SpecificationError

VERBS = [
    [],
    ["setup"],
    ["env"],
    ["plan"],
    ["test"],
    ["lab"],
    ["lab", "up"],
    ["lab", "down"],
    ["lab", "status"],
    ["image"],
    ["image", "list"],
    ["rules"],
    ["golden"],
    ["review"],
    ["history"],
    ["rollback"],
    ["switch"],
    ["give-up"],
    ["claims"],
    ["claims", "show"],
    ["claims", "clear"],
    ["status"],
]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_explains_itself(verb: list[str]) -> None:
    result = CliRunner().invoke(app, [*verb, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_a_plan_for_programs_is_one_json_document_and_for_people_names_every_rank() -> None:
    plan = json.loads(CliRunner().invoke(app, ["plan", "lab", "--json"]).output)
    assert len(plan["hash"]) == 64
    assert [rank["node"] for rank in plan["groups"][0]["ranks"]] == ["lab-1", "lab-2"]
    shown = CliRunner().invoke(app, ["plan", "lab"]).output
    assert "lab-1" in shown
    assert "lab-2" in shown


def test_a_stack_that_does_not_exist_is_named() -> None:
    result = CliRunner().invoke(app, ["plan", "nowhere"])
    assert result.exit_code == 1
    assert isinstance(result.exception, SpecificationError)
    assert "Pulumi.nowhere.yaml" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nodes", "9"], "catalog/clusters/lab.yaml describes 4 nodes"),
        (["--nodes", "1"], "the stack needs lab-2 too, and the lab gets lab-1"),
        (["--stack", "glm53-tp4"], "the stack needs gb10-1, gb10-2, gb10-3, gb10-4 too"),
    ],
)
def test_a_lab_that_cannot_hold_its_stack_is_refused_before_anything_is_made(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["lab", "up", *arguments])
    assert isinstance(result.exception, OperationError)
    assert words in str(result.exception)


def test_wrong_usage_has_its_own_code() -> None:
    assert CliRunner().invoke(app, ["lab", "up", "--nodes", "none"]).exit_code == 2
    with pytest.raises(OperationError, match="no test level fast; there are: lint"):
        run_tests(["fast"])


def test_no_fabric_of_the_tests_is_in_anothers_way() -> None:
    networks = [ipaddress.ip_network(text) for share in SHARES for text in share.subnets.split()]
    assert not [pair for pair in itertools.combinations(networks, 2) if pair[0].overlaps(pair[1])]
    assert len({share.fabric for share in SHARES}) == len(SHARES)


@pytest.mark.parametrize(
    ("arguments", "stack"),
    [
        (["up", "--stack", "lab"], "lab"),
        (["preview", "--stack=lab", "--diff"], "lab"),
        (["destroy", "-s", "lab"], "lab"),
        (["up", "--stack"], None),
        (["stack", "ls", "--stack", "lab"], None),
        ([], None),
    ],
)
def test_the_stack_that_pulumi_is_asked_for(arguments: list[str], stack: str | None) -> None:
    assert named_stack(arguments) == stack


def test_only_the_lock_of_a_dead_process_of_this_machine_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / ".pulumi" / "locks" / "organization" / "gb10-serving" / "lab"
    folder.mkdir(parents=True)
    here = os.uname().nodename
    holders = {"dead": (2**22 + 1, here), "alive": (os.getpid(), here), "elsewhere": (2**22 + 1, "other-host")}
    for name, (pid, host) in holders.items():
        (folder / f"{name}.json").write_text(json.dumps({"pid": pid, "hostname": host}))
    told: list[str] = []
    stack_state.release_dead_lock("lab", {"PULUMI_BACKEND_URL": f"file://{tmp_path}"}, told.append)
    assert {path.stem for path in folder.iterdir()} == {"alive", "elsewhere"}
    assert len(told) == 1


def test_the_runtime_is_known_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    first = runtime_package(tmp_path)
    runtime_package.cache_clear()
    assert runtime_package(tmp_path) == first
    (tmp_path / "a.py").write_text("2")
    runtime_package.cache_clear()
    assert runtime_package(tmp_path).hash != first.hash
