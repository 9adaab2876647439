"""Where weights come from, where they go and what ranks are told, as the plan has it."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from spec.catalog import Catalog, read_stack
from spec.errors import SpecificationError
from spec.plan import plan_release
from spec.release import Release, WeightsPlan
from spec.weights import OFFLINE
from tests.conftest import PROJECT

MODEL, DRAFTER = "glm53-flash-nvidia-nvfp4", "glm53-flash-dflash2"


@pytest.fixture
def glm() -> dict[str, Any]:
    return read_stack(PROJECT, "glm53")


def planned(config: dict[str, Any], catalog: Catalog, **weights: Any) -> tuple[Release, dict[str, WeightsPlan]]:
    chosen = {name.replace("_", "-"): choice for name, choice in weights.items()}
    release = plan_release("glm53", config | ({"weights": chosen} if chosen else {}), catalog)
    return release, {plan.name: plan for plan in release.weights}


def test_without_a_choice_they_come_from_the_controllers_cache(glm: dict[str, Any], catalog: Catalog) -> None:
    _, plans = planned(glm, catalog)
    plan = plans[MODEL]
    assert (plan.source.kind, plan.source.folder) == ("controller", f"models/{plan.revision}")
    assert plan.receipt == f"{plan.folder}.receipt.json"
    assert (plan.layout, plan.path) == ("flat", "/model")


def test_a_drafter_needs_no_tokenizer_and_a_template_of_the_image_none_of_the_model(
    glm: dict[str, Any], catalog: Catalog
) -> None:
    _, plans = planned(glm, catalog)
    assert plans[DRAFTER].requires == ("config",)
    assert plans[MODEL].requires == ("config", "tokenizer")
    del glm["engine"]["other"]["chat_template"]
    assert "chat_template" in planned(glm, catalog)[1][MODEL].requires
    glm["engine"]["other"]["chat_template"] = "/model/templates/mm.jinja"
    assert planned(glm, catalog)[1][MODEL].required_files == ("templates/mm.jinja",)


def test_ranks_are_pointed_to_a_snapshot_below_the_whole_repository(glm: dict[str, Any], catalog: Catalog) -> None:
    folder = "/home/me/.cache/huggingface/hub/models--nvidia--GLM-5.3-Flash-NVFP4"
    release, plans = planned(
        glm,
        catalog,
        glm53_flash_nvidia_nvfp4={"kind": "node", "node": "gb10-5", "folder": folder},
        glm53_flash_dflash2={"kind": "huggingface", "node": "gb10-1"},
    )
    model, drafter = plans[MODEL], plans[DRAFTER]
    rank = release.groups[0].ranks[0]
    assert model.layout == drafter.layout == "huggingface"
    assert model.path == f"/model/snapshots/{model.revision}"
    command = " ".join(rank.command)
    assert model.path in command
    assert f"/drafter/snapshots/{drafter.revision}" in command
    mounts = {mount.target: mount.source for mount in rank.mounts}
    assert mounts["/model"] == model.folder
    assert model.folder.endswith("-hub")
    assert (model.source.connection.node if model.source.connection else None) == "gb10-5"
    assert "gb10-5" not in release.nodes
    assert drafter.source.folder == "/var/lib/gb10-serving/hub"
    assert rank.environment.items() >= OFFLINE.items()


def test_a_share_is_mounted_where_it_is_and_its_receipt_is_ours(glm: dict[str, Any], catalog: Catalog) -> None:
    share = {"kind": "nfs", "export": "nas:/models", "folder": "/mnt/models/glm"}
    release, plans = planned(glm, catalog, glm53_flash_nvidia_nvfp4=share)
    assert plans[MODEL].folder == "/mnt/models/glm"
    assert plans[MODEL].receipt.startswith("/var/lib/gb10-serving/weights/")
    assert "/mnt/models/glm" in [mount.source for mount in release.groups[0].ranks[0].mounts]


@pytest.mark.parametrize(
    "choice",
    [
        {"kind": "nfs", "folder": "/mnt/models", "export": "/models"},
        {"kind": "node", "node": "gb10-1", "folder": "relative"},
        {"kind": "huggingface", "node": "gb10-1", "endpoint": "https://user:secret@mirror"},
        {"kind": "magic"},
    ],
)
def test_a_malformed_choice_is_refused(glm: dict[str, Any], catalog: Catalog, choice: dict[str, str]) -> None:
    with pytest.raises(SpecificationError, match=f"weights/{MODEL}"):
        planned(glm, catalog, glm53_flash_nvidia_nvfp4=choice)


def test_a_pinned_manifest_is_another_folder_and_another_generation(
    glm: dict[str, Any], catalog: Catalog, tmp_path: Path
) -> None:
    shutil.copytree(catalog.folder, tmp_path / "catalog")
    (tmp_path / "patches").symlink_to(catalog.folder.parent / "patches")
    path = tmp_path / "catalog" / "models" / f"{MODEL}.yaml"
    path.write_text(f"manifest: {'a' * 64}\n{path.read_text()}")
    free, free_plans = planned(glm, catalog)
    pinned, pinned_plans = planned(glm, Catalog(tmp_path / "catalog"))
    assert pinned_plans[MODEL].manifest == "a" * 64
    assert pinned_plans[MODEL].folder != free_plans[MODEL].folder
    assert pinned.groups[0].hash != free.groups[0].hash
    assert pinned_plans[DRAFTER] == free_plans[DRAFTER]
