"""The last steps on a node and what vouches for them, on plain folders."""

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from runtime.common.weights_manifest import Manifest, make_manifest
from runtime.node import preflight, weights, weights_sources
from runtime.node.errors import NodeTaskError
from tests.checkpoints import REVISION, checkpoint, write_flat, write_hub


def quiet(_: str) -> None:
    pass


@pytest.fixture
def flat(tmp_path: Path) -> dict[str, Any]:
    return arrived(tmp_path, write_flat(tmp_path / "source", checkpoint()), "flat")


@pytest.fixture
def hub(tmp_path: Path) -> dict[str, Any]:
    return arrived(tmp_path, write_hub(tmp_path, checkpoint(), main=f"{REVISION}\n"), "huggingface")


def arrived(tmp_path: Path, source: Path, layout: Any) -> dict[str, Any]:
    """Returns a request to finish weights whose regular files have arrived."""
    manifest = make_manifest(source, layout, REVISION, None, quiet)
    folder = tmp_path / "weights" / "tiny" / "folder"
    for file in manifest.files:
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / file.path, folder / file.path)
    return {
        "folder": str(folder),
        "receipt": f"{folder}.receipt.json",
        "revision": REVISION,
        "requires": ["config"],
        "required_files": [],
        "manifest": manifest.as_data(),
        "in_place": False,
    }


def test_a_receipt_vouches_for_a_flat_folder(flat: dict[str, Any]) -> None:
    assert weights.status(flat)["why"] == "there is no receipt"
    done = weights.finish(flat)
    assert weights.status(flat) == {"complete": True, "why": None, **done}
    assert done["manifest"] == Manifest.from_data(flat["manifest"]).hash
    assert weights.held_manifest(flat) == flat["manifest"]


def test_links_stay_links_and_refs_main_has_no_newline(hub: dict[str, Any]) -> None:
    weights.finish(hub)
    folder = Path(hub["folder"])
    assert (folder / "refs" / "main").read_text() == REVISION
    link = folder / "snapshots" / REVISION / "config.json"
    assert link.is_symlink()
    assert link.read_bytes() == b"{}"
    assert weights.status(hub)["complete"]
    weights.finish(hub)
    assert weights.status(hub)["complete"]


def test_every_user_may_read_whatever_the_modes_were(hub: dict[str, Any]) -> None:
    folder = Path(hub["folder"])
    for path in folder.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    weights.finish(hub)
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode & 0o444 == 0o444, path
            assert not path.is_dir() or mode & 0o111 == 0o111, path


def test_a_foreign_file_stays_and_is_told(flat: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    foreign = Path(flat["folder"]) / "notes.txt"
    foreign.write_text("mine")
    weights.finish(flat)
    assert foreign.read_text() == "mine"
    assert "1 files in" in capsys.readouterr().err


def test_a_foreign_file_in_a_links_place_is_refused_and_stays(hub: dict[str, Any]) -> None:
    path = Path(hub["folder"]) / "snapshots" / REVISION / "config.json"
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(NodeTaskError, match=r"config\.json is a file, and the weights have a link of that name"):
        weights.finish(hub)
    assert path.read_text() == "mine"
    assert not weights.status(hub)["complete"]


def test_no_receipt_is_written_for_what_did_not_arrive(flat: dict[str, Any]) -> None:
    (Path(flat["folder"]) / "config.json").write_bytes(b"too long")
    with pytest.raises(NodeTaskError, match=r"config\.json is not there with 2 bytes after the transfer"):
        weights.finish(flat)
    assert weights.status(flat)["why"] == "there is no receipt"


@pytest.mark.parametrize("damage", ["removed", "longer", "touched"])
def test_what_happens_to_files_later_is_seen_without_reading_them(flat: dict[str, Any], damage: str) -> None:
    weights.finish(flat)
    path = Path(flat["folder"]) / "model-00001-of-00002.safetensors"
    if damage == "removed":
        path.unlink()
    elif damage == "longer":
        with path.open("ab") as file:
            file.write(b"x")
    else:
        os.utime(path, ns=(1, 1))
    found = weights.status(flat)
    assert not found["complete"]
    assert "model-00001-of-00002.safetensors" in found["why"]


@pytest.mark.parametrize(
    ("path", "content"), [("refs/main", f"{REVISION}\n"), (f"snapshots/{REVISION}/config.json", None)]
)
def test_what_happens_to_links_and_refs_later_is_seen(hub: dict[str, Any], path: str, content: str | None) -> None:
    weights.finish(hub)
    changed = Path(hub["folder"]) / path
    changed.unlink()
    if content:
        changed.write_text(content)
    assert path in weights.status(hub)["why"]


def test_a_receipt_is_for_one_revision(flat: dict[str, Any]) -> None:
    weights.finish(flat)
    assert "receipt is for revision" in weights.status(flat | {"revision": "another"})["why"]


def test_a_receipt_vouches_only_for_what_this_deployment_requires(flat: dict[str, Any]) -> None:
    weights.finish(flat)
    assert weights.status(flat | {"requires": ["config", "tokenizer", "chat_template"]})["complete"]
    why = weights.status(flat | {"required_files": ["mm.jinja"]})["why"]
    assert why.endswith("mm.jinja is not there, and the stack file names it")


def test_a_receipt_of_another_version_vouches_for_nothing(flat: dict[str, Any]) -> None:
    Path(flat["receipt"]).write_text(json.dumps({"revision": REVISION, "manifest": "m", "files": []}))
    assert weights.status(flat)["why"] == "there is no receipt"


def test_damage_that_stat_cannot_see_is_kept_in_mind(flat: dict[str, Any]) -> None:
    weights.finish(flat)
    weights.distrust(flat | {"paths": ["config.json"]})
    assert "config.json was found damaged when it was read again" in weights.status(flat)["why"]
    weights.finish(flat)
    assert weights.status(flat)["complete"]


def test_preflight_holds_the_receipt_against_the_deployments(flat: dict[str, Any]) -> None:
    check = preflight._weights
    assert "there is no receipt. `./fleet weights sync STACK` mends it" in (check(flat | {"manifest": "m"}) or "")
    done = weights.finish(flat)
    assert check(flat | {"manifest": done["manifest"]}) is None
    assert "the deployment's is m" in (check(flat | {"manifest": "m"}) or "")


def test_a_node_that_has_the_files_takes_them_by_link(tmp_path: Path) -> None:
    source = write_hub(tmp_path / "cache", checkpoint())
    manifest = make_manifest(source, "huggingface", REVISION, None, quiet)
    asked = {"source_folder": str(source), "folder": str(tmp_path / "ours"), "manifest": manifest.as_data()}
    assert weights_sources.adopt(asked) == {"linked": manifest.size_bytes, "copied": 0}
    for file in manifest.files:
        assert (tmp_path / "ours" / file.path).samefile(source / file.path)
    assert weights_sources.adopt(asked) == {"linked": 0, "copied": 0}


def test_a_file_that_only_its_owner_may_read_is_copied_and_keeps_its_mode(tmp_path: Path) -> None:
    source = write_flat(tmp_path / "source", {"a": b"1", "b": b"22"})
    (source / "b").chmod(0o600)
    manifest = make_manifest(source, "flat", REVISION, None, quiet)
    asked = {"source_folder": str(source), "folder": str(tmp_path / "ours"), "manifest": manifest.as_data()}
    assert weights_sources.adopt(asked) == {"linked": 1, "copied": 2}
    weights.finish({**asked, "receipt": str(tmp_path / "r.json"), "in_place": False})
    assert stat.S_IMODE((source / "b").stat().st_mode) == 0o600
    assert (tmp_path / "ours" / "b").read_bytes() == b"22"


MOUNTS = r"""/dev/nvme0n1p2 / ext4 rw 0 0
nas:/models /mnt/models nfs4 rw,vers=4.2 0 0
nas:/other /mnt/models/with\040space nfs rw 0 0
"""


def test_the_file_system_of_a_folder_is_the_innermost_mount() -> None:
    assert weights_sources.mount_of(Path("/mnt/models/x"), MOUNTS) == ("nas:/models", "nfs4", "/mnt/models")
    assert weights_sources.mount_of(Path("/mnt/models/with space/x"), MOUNTS)[0] == "nas:/other"
    assert weights_sources.mount_of(Path("/mnt/modelsX"), MOUNTS)[0] == "/dev/nvme0n1p2"


def test_a_share_must_be_the_one_that_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"folder": str(tmp_path), "export": "nas:/models"}
    with pytest.raises(NodeTaskError, match="which is no NFS share: mount nas:/models there"):
        weights_sources.share(asked)
    monkeypatch.setattr(weights_sources, "mount_of", lambda *_: ("nas:/old", "nfs4", "/mnt"))
    with pytest.raises(NodeTaskError, match="lies on the share nas:/old, the stack file names nas:/models"):
        weights_sources.share(asked)
    monkeypatch.setattr(weights_sources, "mount_of", lambda *_: ("nas:/models", "nfs4", "/mnt"))
    assert weights_sources.share(asked) == {"mounted": "nas:/models"}


def test_a_receipt_for_a_share_lies_elsewhere_and_leaves_the_share_alone(tmp_path: Path) -> None:
    folder = write_hub(tmp_path, checkpoint(), main=f"{REVISION}\n")
    manifest = make_manifest(folder, "huggingface", REVISION, None, quiet)
    before = sorted((str(path), path.lstat().st_mode, path.lstat().st_mtime_ns) for path in folder.rglob("*"))
    asked = {
        "folder": str(folder),
        "receipt": str(tmp_path / "elsewhere" / "r.json"),
        "revision": REVISION,
        "requires": ["config"],
        "required_files": [],
        "manifest": manifest.as_data(),
        "in_place": True,
    }
    weights.finish(asked)
    assert weights.status(asked)["complete"]
    assert before == sorted((str(path), path.lstat().st_mode, path.lstat().st_mtime_ns) for path in folder.rglob("*"))
    assert json.loads((tmp_path / "elsewhere" / "r.json").read_text())["hash"] == manifest.hash
