"""The image chain of a stack on real nodes: what a preview names, what is built, what moves, what stays."""

import io
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ops.remote import NodeError, run_on_node
from ops.stack_images import JudgedImage, judge_images
from spec.catalog import Catalog
from spec.connection import connection_to
from spec.plan import plan_release
from tests.virtual import Project, Run, Step, cheap_deployment

STEPS = ("image-01-spin-wait", "image-02-backend-gate", "image-03-pdl-gate", "image-04-reasoning-upstream")
GROUP = {"main-generation", "main-test-1-rank0", "main-test-2-rank1", "main-ready"}


def patched_deployment(*nodes: str) -> dict[str, Any]:
    """Returns a deployment of the cheap engine in the image of the whole chain."""
    return cheap_deployment(*nodes) | {"image": "patched"}


def change_step(project: Project, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes a step of the project's own copy of patches/."""
    path = project.folder / "patches" / "steps" / name / "step.yaml"
    described = yaml.safe_load(path.read_text())
    change(described)
    path.write_text(yaml.safe_dump(described))


def reword(described: dict[str, Any]) -> None:
    """Changes one edit of a step: it writes another comment."""
    edit = described["edits"][0]
    edit["replacement"] = edit["replacement"].replace("gb10-serving", "gb10-serving, second writing")
    edit["marker"] = edit["marker"].replace("gb10-serving", "gb10-serving, second writing")


def layers(project: Project, node: str, reference: str) -> list[str]:
    return json.loads(project.on_node(node, f"docker image inspect --format '{{{{json .RootFS.Layers}}}}' {reference}"))


def tags(project: Project, node: str) -> set[str]:
    return set(project.on_node(node, "docker image ls --format '{{.Repository}}:{{.Tag}}'").split())


def test_a_change_in_one_step_is_named_with_all_that_follows(project: Project) -> None:
    assert project.up("one", patched_deployment("test-1", "test-2")).code == 0
    old = project.image_reference("patched")
    change_step(project, "backend-gate", reword)
    preview = project.pulumi("preview", "--stack", "one", "--diff")
    assert preview.code == 0, preview.output
    changed = preview.changed()
    assert {*STEPS[1:], "image-verify", "image-share", "image-test-1", "image-test-2"} <= changed
    assert changed >= GROUP
    assert not changed & {"image-base", STEPS[0], "test-1-reached", "weights-cheap-test-1", "main-test-1-claim"}
    assert "edit of vllm/platforms/cuda.py" in changes_of(preview)

    up = project.up("one")
    assert up.code == 0, up.output
    before, after = (layers(project, "test-2", name) for name in (old, project.image_reference("patched")))
    assert before[:3] == after[:3], "the base and the first step are the same layers"
    assert before[3] != after[3]
    assert project.ask("test-1") == "17 x 23 = 391"

    judged = judge(project)
    assert [one.is_right for one in judged] == [True, True]
    assert all(one.report and one.report["checks"] for one in judged)
    project.on_node("test-2", f"docker tag {old} {project.image_reference('patched')}")
    right, exchanged = judge(project)
    assert right.is_right
    assert exchanged.first_other_layer == 3
    assert exchanged.report
    assert exchanged.report["ok"] is False, "the edit of the new step is not in the old image"
    (other,) = judge(project, nodes=["test-2"], reference=old)
    assert other.report
    assert other.report["ok"], "the old image is right by the rules for any image"


def judge(project: Project, nodes: list[str] | None = None, reference: str | None = None) -> list[JudgedImage]:
    catalog = Catalog(project.folder / "catalog")
    release = plan_release("one", patched_deployment("test-1", "test-2"), catalog)
    return judge_images(
        release, lambda name: catalog.chain(name, "catalog/images"), nodes or ["test-1", "test-2"], reference
    )


def changes_of(preview: Run) -> str:
    """Returns the part of a preview with details that shows the second step."""
    return preview.output[preview.output.index(STEPS[1]) :].split("image-03", maxsplit=1)[0]


def test_the_words_of_a_step_are_not_part_of_it(project: Project) -> None:
    assert project.up("one", patched_deployment("test-1")).code == 0
    change_step(project, "spin-wait", lambda described: described.update(purpose="Said in other words."))
    assert project.up("one").changed() == set()


MISFITS: list[tuple[dict[str, Any], str]] = [
    ({"anchor": "no such text"}, "the anchor is missing, it must stand there once"),
    ({"file": "vllm/absent.py"}, "there is no such file"),
    ({"count": 2}, "the anchor stands there only once"),
]


def test_a_step_that_does_not_fit_ends_the_build_and_the_group_still_serves(project: Project) -> None:
    assert project.up("one", patched_deployment("test-1")).code == 0
    path = project.folder / "patches" / "steps" / "pdl-gate" / "step.yaml"
    described = path.read_text()
    for misfit, words in MISFITS:
        path.write_text(described)
        change_step(project, "pdl-gate", lambda step, misfit=misfit: step["edits"][0].update(misfit))
        run = project.up("one")
        assert run.code != 0, misfit
        assert Step("update failed", STEPS[2]) in run.steps
        assert "03-pdl-gate: the build failed" in run.output
        assert words in run.output
        assert "Way out:" in run.output
    assert project.ask("test-1") == "17 x 23 = 391"


def test_another_nccl_ends_the_build_and_names_version_and_step(project: Project) -> None:
    folder = project.folder / "patches"
    place_nccl(folder / "lab" / "nccl", "2.30.7")
    place_nccl(folder / "lab" / "older-nccl", "2.29.7")
    described = yaml.safe_load((folder / "lab" / "chain.yaml").read_text())
    described["steps"] = ["nccl", "older-nccl"]
    (folder / "lab" / "chain.yaml").write_text(yaml.safe_dump(described))
    run = project.up("one", patched_deployment("test-1"))
    assert run.code != 0
    assert Step("create", "image-01-nccl") in run.steps
    assert Step("create failed", "image-02-older-nccl") in run.steps
    assert "older-nccl: /usr/local/lib/python3.11/dist-packages/nvidia/nccl/lib/libnccl.so.2" in run.output
    assert "the file placed is NCCL 2.29.7" in run.output


def place_nccl(step: Path, version: str) -> None:
    """Makes a step that does to an image what the package of NCCL does: its name, and a library that says a version."""
    packages = "/usr/local/lib/python3.11/dist-packages"
    step.mkdir()
    (step / "libnccl.so.2").write_bytes(f"\x7fELF\0NCCL version {version}+cuda13.3\0".encode())
    (step / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-nccl-cu13\nVersion: 2.30.7\n")
    files = [
        {"source": "libnccl.so.2", "target": f"{packages}/nvidia/nccl/lib/libnccl.so.2"},
        {"source": "METADATA", "target": f"{packages}/nvidia_nccl_cu13-2.30.7.dist-info/METADATA"},
    ]
    described = {"purpose": "NCCL", "source": "the tests", "files": files}
    (step / "step.yaml").write_text(yaml.safe_dump(described))


def test_old_images_are_kept_to_the_number_of_the_stack_and_others_are_left_alone(project: Project) -> None:
    deployment = patched_deployment("test-1", "test-2") | {"image_build": {"kept": 1}}
    # Its first step is changed below, and what other tests left on the nodes was built of the unchanged one.
    another_chain = project.image_reference("cheap")
    assert project.up("one", deployment).code == 0
    project.on_node("test-2", f"docker tag {project.image_reference('patched')} somebody/else:1")
    references = [project.image_reference("patched")]
    for word in ("second", "third"):
        change_step(
            project, "spin-wait", lambda described, word=word: described["edits"][0].update(rewritten(described, word))
        )
        run = project.up("one")
        assert run.code == 0, run.output
        references.append(project.image_reference("patched"))
    for node in ("test-1", "test-2"):
        assert {name for name in tags(project, node) if "/chain:" in name} - {another_chain} == set(references[1:])
    assert "somebody/else:1" in tags(project, "test-2")
    project.on_node("test-2", "docker rmi somebody/else:1")


def rewritten(described: dict[str, Any], word: str) -> dict[str, Any]:
    edit = described["edits"][0]
    marker = f"# gb10-serving: {word}"
    return {"replacement": edit["replacement"].replace(edit["marker"], marker), "marker": marker}


def test_a_build_that_adds_no_layer_is_an_error(project: Project) -> None:
    assert project.up("one", patched_deployment("test-1")).code == 0
    parent = project.image_reference("patched")
    with pytest.raises(NodeError, match=r"nothing: the build added no layer to gb10-serving/chain:\w+"):
        build(project, parent, f"FROM {parent}\nLABEL a=b\n")
    assert "gb10-serving/step:nothing" not in tags(project, "test-1")


def test_a_build_that_takes_too_long_is_ended(project: Project) -> None:
    assert project.up("one", patched_deployment("test-1")).code == 0
    parent = project.image_reference("patched")
    with pytest.raises(NodeError, match="not built within 2 s"):
        build(project, parent, f"FROM {parent}\nRUN echo begun && sleep 100\n", limit_seconds=2)
    assert "begun" in project.on_node("test-1", "cat /var/lib/gb10-serving/logs/images/nothing.log")


def build(project: Project, parent: str, dockerfile: str, limit_seconds: int = 60) -> None:
    """Has a node build a Dockerfile as a step of a chain."""
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        for builder in ("buildkit", "classic"):
            member = tarfile.TarInfo(f"Dockerfile.{builder}")
            member.size = len(dockerfile)
            tar.addfile(member, io.BytesIO(dockerfile.encode()))
    storage = project.cluster.storage_folder
    request = {
        "storage_folder": storage,
        "name": "nothing",
        "reference": "gb10-serving/step:nothing",
        "parent": parent,
        "identity": "0",
        "identity_label": "gb10-serving.chain.identity",
        "adds_layers": True,
        "network": "none",
        "log": f"{storage}/logs/images/nothing.log",
        "limit_seconds": limit_seconds,
        "read": None,
    }
    run_on_node(connection_to(project.cluster, "test-1"), storage, "image-build", request, [context.getvalue()])


def test_an_image_that_a_node_lost_is_brought_back_by_one_replacement(project: Project) -> None:
    assert project.up("one", patched_deployment("test-1", "test-2")).code == 0
    image = project.image_reference("patched")
    assert project.destroy("one").code == 0
    project.on_node("test-2", f"docker rmi {image}")
    run = project.up("one")
    assert run.code == 0, run.output
    assert image in tags(project, "test-2")
    assert re.search(r"test-2: \d+ of \d+ layers came, [\d,]+ bytes moved", run.output)
