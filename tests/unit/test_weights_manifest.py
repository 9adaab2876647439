"""Manifests of both layouts, what is wrong with a folder, and what is remembered."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.common import file_hashes
from runtime.common.errors import FilesError
from runtime.common.file_hashes import hash_files, sha256_of
from runtime.common.weights_folder import Examined, examine
from runtime.common.weights_manifest import Manifest, make_manifest
from tests.checkpoints import OTHER_REVISION, REVISION, checkpoint, tensors_file, write_flat, write_hub

REQUEST: dict[str, Any] = {
    "layout": "flat",
    "revision": REVISION,
    "requires": ["config", "tokenizer", "chat_template"],
    "required_files": [],
}
HUB = REQUEST | {"layout": "huggingface"}


def quiet(_: str) -> None:
    pass


def examined(tmp_path: Path, folder: Path, request: dict[str, Any] = REQUEST) -> Examined:
    return examine(request, folder, tmp_path / "hashes", quiet)


def test_a_flat_folder_is_listed_with_sizes_and_hashes(tmp_path: Path) -> None:
    files = checkpoint() | {"sub folder/tökenizer.json": b"[]", "empty": b""}
    folder = write_flat(tmp_path / "flat", files)
    found = examined(tmp_path, folder).manifest
    assert {file.path: file.size_bytes for file in found.files} == {name: len(data) for name, data in files.items()}
    assert all(file.sha256 == sha256_of(folder / file.path) for file in found.files)
    assert found.size_bytes == sum(map(len, files.values()))


def test_a_repository_of_the_cache_is_its_snapshot_with_the_blobs_behind_it(tmp_path: Path) -> None:
    files = checkpoint()
    folder = write_hub(tmp_path, files)
    write_hub(tmp_path, {"config.json": b'{"other": 1}'}, OTHER_REVISION, main=REVISION)
    found = examined(tmp_path, folder, HUB).manifest
    assert set(found.links) == {f"snapshots/{REVISION}/{name}" for name in files}
    assert all(target.startswith("../../blobs/") for target in found.links.values())
    assert {file.path.split("/")[0] for file in found.files} == {"blobs"}
    assert len(found.files) == len(set(files.values()))
    assert found.texts == {"refs/main": REVISION}


def test_both_layouts_of_the_same_files_have_the_same_hash(tmp_path: Path) -> None:
    files = checkpoint()
    flat = examined(tmp_path, write_flat(tmp_path / "flat", files)).manifest
    hub = examined(tmp_path, write_hub(tmp_path, files), HUB).manifest
    assert flat.hash == hub.hash
    files["config.json"] = b"{ }"
    assert examined(tmp_path, write_flat(tmp_path / "flat", files)).manifest.hash != flat.hash


@given(files=st.dictionaries(st.sampled_from(["a", "b", "c/d", "ü x"]), st.binary(max_size=20), min_size=1))
def test_a_manifest_survives_being_written_down(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("files")
    for made in (
        make_manifest(write_flat(folder / "flat", files), "flat", REVISION, None, quiet),
        make_manifest(write_hub(folder, files), "huggingface", REVISION, None, quiet),
    ):
        again = Manifest.from_data(json.loads(json.dumps(made.as_data())))
        assert again == made
        assert again.hash == made.hash


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "a/../../b", ""])
def test_a_manifest_cannot_lead_out_of_its_folder(path: str) -> None:
    data = {"layout": "flat", "revision": "r", "files": [[path, 1, "0" * 64]], "links": {}, "texts": {}}
    with pytest.raises(FilesError, match="leads out of its folder"):
        Manifest.from_data(data)
    linked = {"layout": "flat", "revision": "r", "files": [], "links": {"a": "../../x"}, "texts": {}}
    with pytest.raises(FilesError, match="which is no file of it"):
        Manifest.from_data(linked)


def test_a_dangling_link_is_found_and_explained(tmp_path: Path) -> None:
    folder = write_hub(tmp_path, checkpoint())
    link = folder / "snapshots" / REVISION / "config.json"
    link.resolve().unlink()
    with pytest.raises(
        FilesError, match=r"(config|tokenizer)\.json is a link to \.\./\.\./blobs/\w+, and there is nothing: a download"
    ):
        examined(tmp_path, folder, HUB)


def test_a_snapshot_named_alone_is_explained(tmp_path: Path) -> None:
    folder = write_hub(tmp_path, checkpoint())
    with pytest.raises(FilesError, match=r"Name the whole folder .*models--owner--tiny instead of one snapshot"):
        examined(tmp_path, folder / "snapshots" / REVISION)


def test_a_newline_in_refs_main_is_found_explained_and_not_part_of_the_identity(tmp_path: Path) -> None:
    folder = write_hub(tmp_path, checkpoint())
    clean = examined(tmp_path, folder, HUB)
    assert clean.notes == []
    (folder / "refs" / "main").write_text(f"{REVISION}\n")
    found = examined(tmp_path, folder, HUB)
    assert found.manifest == clean.manifest
    assert "refs/main ends with a newline" in found.notes[0]
    (folder / "refs" / "main").write_text(OTHER_REVISION)
    assert f"names {OTHER_REVISION}, the deployment pins {REVISION}" in examined(tmp_path, folder, HUB).notes[0]


def test_an_absent_snapshot_is_told_with_those_that_are_there(tmp_path: Path) -> None:
    folder = write_hub(tmp_path, checkpoint(), OTHER_REVISION)
    with pytest.raises(FilesError, match=f"holds no snapshot {REVISION}; it has {OTHER_REVISION}"):
        examined(tmp_path, folder, HUB)


def test_a_blob_that_its_name_does_not_fit_is_found(tmp_path: Path) -> None:
    folder = write_hub(tmp_path, checkpoint())
    blob = (folder / "snapshots" / REVISION / "model-00002-of-00002.safetensors").resolve()
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(bytes(content))
    with pytest.raises(FilesError, match=r"holds other bytes than its name says .* was damaged"):
        examined(tmp_path, folder, HUB)


SECOND = "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({SECOND: None}, rf"{SECOND} is missing: model.safetensors.index.json places 1 tensors in it"),
        ({SECOND: checkpoint()[SECOND] + b"xx"}, rf"{SECOND} is oversized: .* 2 too many"),
        ({SECOND: checkpoint()[SECOND][:-7]}, rf"{SECOND} is cut off: its tensors end at byte \d+ and it has \d+"),
        ({SECOND: b""}, rf"{SECOND} has no whole header"),
        ({SECOND: b"<html>not found</html>"}, rf"{SECOND} has no whole header"),
        (
            {SECOND: tensors_file({"another": 9})},
            rf"{SECOND} is the wrong file: .* places layers.1.weight \(and 0 more\)",
        ),
        (
            {SECOND: tensors_file({"layers.1.weight": 9, "layers.0.weight": 9})},
            rf"{SECOND} holds layers.0.weight .* which .* places in model-00001-of-00002",
        ),
        ({"model.safetensors.index.json": b"{"}, "is not readable as an index"),
        ({"config.json": None}, r"has none of config\.json"),
        ({"tokenizer.json": None}, r"has none of tokenizer\.json"),
        ({"chat_template.jinja": None}, r"has none of chat_template\.jinja.*the chat endpoint refuses"),
    ],
)
def test_each_kind_of_damage_has_its_own_message(tmp_path: Path, change: dict[str, bytes | None], message: str) -> None:
    files = {name: data for name, data in (checkpoint() | change).items() if data is not None}
    with pytest.raises(FilesError, match=message):
        examined(tmp_path, write_flat(tmp_path / "flat", files))


def test_an_extra_shard_is_a_note(tmp_path: Path) -> None:
    files = checkpoint() | {"model-00003-of-00003.safetensors": tensors_file({"x": 1})}
    found = examined(tmp_path, write_flat(tmp_path / "flat", files))
    assert len(found.notes) == 1
    assert "model-00003-of-00003.safetensors is extra" in found.notes[0]


def test_a_template_in_the_tokenizers_configuration_is_enough(tmp_path: Path) -> None:
    files = checkpoint() | {"tokenizer_config.json": b'{"chat_template": "x"}'}
    del files["chat_template.jinja"]
    assert examined(tmp_path, write_flat(tmp_path / "flat", files)).notes == []


def test_a_file_that_the_stack_names_must_be_there_and_a_drafter_needs_little(tmp_path: Path) -> None:
    folder = write_flat(tmp_path / "flat", checkpoint())
    with pytest.raises(FilesError, match=r"mm\.jinja is not there, and the stack file names it"):
        examined(tmp_path, folder, REQUEST | {"required_files": ["mm.jinja"]})
    drafter = write_flat(tmp_path / "drafter", {"config.json": b"{}", "model.safetensors": tensors_file({"x": 3})})
    assert examined(tmp_path, drafter, REQUEST | {"requires": ["config"]}).notes == []


def test_a_folder_with_its_configuration_alone_is_no_checkpoint(tmp_path: Path) -> None:
    folder = write_flat(tmp_path / "flat", {"config.json": b"{}", "tokenizer.json": b"{}", "chat_template.jinja": b""})
    with pytest.raises(FilesError, match="no file of tensors at all: only the configuration was downloaded"):
        examined(tmp_path, folder)


def test_bookkeeping_of_tools_is_left_out(tmp_path: Path) -> None:
    folder = write_flat(tmp_path / "flat", checkpoint() | {".cache/huggingface/x.metadata": b"x", "y.incomplete": b"x"})
    found = examined(tmp_path, folder)
    assert not [file.path for file in found.manifest.files if file.path.startswith((".cache", "y."))]
    assert "y.incomplete is an unfinished download" in found.notes[0]


def test_a_hash_is_remembered_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_flat(tmp_path / "flat", {"a": b"1", "b": b"2"})
    for name in ("a", "b"):
        os.utime(folder / name, (1_000_000, 1_000_000))
    memory = tmp_path / "memory.json"
    first = hash_files(folder, ["a", "b"], memory, quiet)
    read: list[str] = []

    def counted(path: Path) -> str:
        read.append(path.name)
        return sha256_of(path)

    monkeypatch.setattr(file_hashes, "sha256_of", counted)
    assert hash_files(folder, ["a", "b"], memory, quiet) == first
    assert read == []
    (folder / "a").write_bytes(b"3")
    assert hash_files(folder, ["a", "b"], memory, quiet)["a"] != first["a"]
    assert read == ["a"]
    # Changed just now: it may change again within one time stamp, so it is read each time.
    hash_files(folder, ["a", "b"], memory, quiet)
    assert read == ["a", "a"]
    replaced = tmp_path / "replaced"
    replaced.write_bytes(b"4")
    os.utime(replaced, (1_000_000, 1_000_000))
    shutil.move(replaced, folder / "b")
    assert hash_files(folder, ["b"], memory, quiet)["b"] != first["b"]


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_flat(tmp_path / "flat", {"a": b"1"})

    def writing(path: Path) -> str:
        path.write_bytes(b"longer")
        return "0" * 64

    monkeypatch.setattr(file_hashes, "sha256_of", writing)
    with pytest.raises(FilesError, match="changed while it was read"):
        hash_files(folder, ["a"], None, quiet)
