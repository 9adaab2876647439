"""Real vLLM, tensor parallel over real nodes: right answers, and failures that are seen."""

import json
import re
import time
from pathlib import Path
from typing import Any

import httpx
import yaml

from lab.model import model_folder
from spec.catalog import Catalog
from spec.plan import plan_release
from tests.virtual import Project, wait_until


def deployment(config: dict[str, Any], *nodes: str) -> dict[str, Any]:
    """Returns what Pulumi.lab.yaml deploys, on nodes of the tests."""
    return config | {"cluster": "test", "groups": {"main": list(nodes)}}


def expected(project: Project) -> dict[str, Any]:
    """Returns what plain transformers answered when the model was made."""
    return json.loads((model_folder(project.catalog.model("lab")) / "expected.json").read_text())


def continuation(project: Project, node: str, prompt: str, tokens: int) -> str:
    """Returns how the deployment continues a plain text."""
    address = project.cluster.nodes[node].management_address
    body = {"model": "lab", "prompt": prompt, "temperature": 0, "max_tokens": tokens}
    response = httpx.post(f"http://{address}:8000/v1/completions", json=body, timeout=120, trust_env=False)
    return response.raise_for_status().json()["choices"][0]["text"]


def test_two_ranks_answer_what_plain_transformers_answers(project: Project, lab_config: dict[str, Any]) -> None:
    run = project.up("lab", deployment(lab_config, "test-1", "test-2"))
    assert run.code == 0, run.output
    oracle = expected(project)
    for dialogue in oracle["dialogues"]:
        assert project.ask("test-1", dialogue["prompt"]) == dialogue["text"]
    for text in oracle["raw"]:
        assert continuation(project, "test-1", text["prompt"], len(text["token_ids"])) == text["text"]
    assert project.up("lab").changed() == set()

    planned = plan_release("lab", deployment(lab_config, "test-1", "test-2"), project.catalog).groups[0].kv_cache
    assert planned is not None
    log = project.on_node("test-1", "docker logs gb10-lab-main-rank0 2>&1")
    assert re.search(r"KV cache size: ([\d,]+) tokens", log).group(1) == f"{planned.tokens:,}"  # type: ignore[union-attr]


def test_a_head_killed_during_its_start_fails_the_up_at_once(project: Project, lab_config: dict[str, Any]) -> None:
    project.write("lab", deployment(lab_config, "test-1", "test-2"))
    process = project.start("up", "--yes", "--skip-preview", "--stack", "lab")
    wait_until(lambda: "gb10-lab-main-rank0" in project.containers("test-1"), "the head's container")
    time.sleep(8)
    killed = time.monotonic()
    project.on_node("test-1", "docker kill --signal KILL gb10-lab-main-rank0")
    output, _ = process.communicate(timeout=120)
    print(f"up failed {time.monotonic() - killed:.1f} s after the head was killed")
    assert process.returncode != 0
    assert "rank 0 (head) on test-1 ended with exit code 137 before the group was ready" in output
    assert "Last lines of rank 0 (head) on test-1:" in output
    assert "Traceback (most recent call last)" not in output


def test_health_is_fine_and_the_first_answer_kills_the_engine(
    project: Project, lab_config: dict[str, Any], virtual_nodes: Catalog
) -> None:
    """Without TORCHDYNAMO_DISABLE the engine compiles at its first answer, and the image has no compiler."""
    entry = Path(virtual_nodes.folder) / "images" / "lab.yaml"
    image = yaml.safe_load(entry.read_text())
    del image["environment"]["TORCHDYNAMO_DISABLE"]
    (entry.parent / "no-compiler.yaml").write_text(yaml.safe_dump(image))
    run = project.up("lab", deployment(lab_config, "test-1", "test-2") | {"image": "no-compiler"})
    assert run.code != 0
    assert "healthy after" in run.output
    assert "group main is not ready" in run.output
    assert "the server answered 500" in run.output
    assert "Last lines of rank 0 (head) on test-1:" in run.output
    assert "No working C++ compiler found" in project.on_node("test-1", "docker logs gb10-lab-main-rank0 2>&1")


def test_one_rank_alone(project: Project, lab_config: dict[str, Any]) -> None:
    run = project.up("lab-tp1", deployment(lab_config, "test-3"))
    assert run.code == 0, run.output
    assert project.ask("test-3") == "17 x 23 = 391"
