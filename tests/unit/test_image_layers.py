"""Layers of images on a node, without a Docker engine: what `docker save` writes, what is composed, what is pruned."""

import hashlib
import io
import json
import os
import shutil
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops import image_sharing
from ops.image_sharing import SharedImage, share_image
from ops.transfers import Received, Receiver
from runtime.common.image_identity import image_identity
from runtime.node.errors import NodeTaskError
from runtime.node.image import export as image_export
from runtime.node.image import missing as image_missing
from runtime.node.image import prune as image_prune
from runtime.node.image import saved as saved_image
from runtime.node.image.archive import Parts, write_archive
from runtime.node.image.missing import Held
from runtime.node.image.room import check_room
from runtime.node.image.store import CLASSIC, CONTAINERD, ImageStore, common_prefix, refuse_other_architecture
from runtime.transfer.state import FolderState
from spec.connection import Connection
from spec.party import Party
from tests.folder_nodes import delivery
from tests.image_archives import HandMade, compressed, digest, random_layer

LOW, PATCH = random_layer("low", 50_000), random_layer("patch", 7_000)
IMAGE = HandMade("gb10-serving/a:1", (LOW, PATCH))
DOUBLED = HandMade("gb10-serving/a:2", (LOW, PATCH, LOW))


def index_of(archive: bytes, layers: list[str]) -> saved_image.SavedImage:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r|") as stream:
        return saved_image.read_index(stream, layers)


def content_of(archive: bytes, layer: saved_image.SavedLayer) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        member = cast(IO[bytes], tar.extractfile(layer.member))
        with saved_image.plain(member) as content:
            return content.read()


FORMS = {
    "old": lambda image: image.old_archive(),
    "old, by Id": lambda image: image.old_archive(repository_tags=False),
    "layout": lambda image: image.layout(),
    "layout, gzip": lambda image: image.layout("gzip"),
    "layout, zstd": lambda image: image.layout("zstd"),
    "layout, index in index": lambda image: image.layout("gzip", nested=True),
}


@pytest.mark.parametrize("image", [IMAGE, DOUBLED], ids=["each layer once", "a layer twice"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_saved_image_says_where_its_layers_are(form: str, image: HandMade) -> None:
    archive = FORMS[form](image)
    found = index_of(archive, image.diff_ids)
    assert found.config.encode() == image.config
    assert [layer.diff_id for layer in found.layers] == image.diff_ids
    assert [content_of(archive, layer) for layer in found.layers] == list(image.layers)
    for layer in found.layers:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            assert layer.size_bytes == tar.getmember(layer.member).size
            blob = cast(IO[bytes], tar.extractfile(layer.member)).read()
        assert layer.digest == (None if form.startswith("old") else digest(blob))


def test_a_blob_that_the_archive_lacks_has_no_size() -> None:
    found = index_of(IMAGE.layout(without=(0,)), IMAGE.diff_ids)
    assert [layer.size_bytes for layer in found.layers] == [None, len(PATCH)]


@pytest.mark.parametrize("form", FORMS)
def test_an_archive_of_another_image_is_an_error(form: str) -> None:
    with pytest.raises(NodeTaskError, match="without an image of the 2 layers"):
        index_of(FORMS[form](DOUBLED), IMAGE.diff_ids)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@pytest.mark.parametrize("damage", ["short", "changed"])
def test_a_damaged_compressed_layer_is_an_error_in_words(compression: str, damage: str) -> None:
    whole = compressed(LOW, compression)
    half = len(whole) // 2
    bad = whole[:half] if damage == "short" else whole[:half] + bytes(200) + whole[half + 200 :]
    with pytest.raises(NodeTaskError, match="damaged"), saved_image.plain(io.BufferedReader(io.BytesIO(bad))) as plain:  # type: ignore[arg-type]
        plain.read()


def test_zstd_without_the_program_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packed = compressed(LOW, "zstd")
    monkeypatch.setenv("PATH", str(tmp_path))
    stream = io.BufferedReader(io.BytesIO(packed))  # type: ignore[arg-type]
    with pytest.raises(NodeTaskError, match="no zstd program"), saved_image.plain(stream):
        pass


DOCKER = """#!/bin/sh
case "$1 $2" in
"image inspect") cat "$0.inspect" ;;
"image ls") ;;
"info --format") echo '{"ServerVersion": "1", "Architecture": "x86_64", "DockerRootDir": "/", "DriverStatus": []}' ;;
save*)
    echo save >> "$0.calls"
    cat "$0.archive"
    [ ! -e "$0.words" ] || { cat "$0.words" >&2; exit 1; } ;;
*) echo "unexpected $*" >&2; exit 9 ;;
esac
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `docker` that has IMAGE and saves what the test puts beside it."""
    program = tmp_path / "programs" / "docker"
    program.parent.mkdir()
    program.write_text(DOCKER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    config = json.loads(IMAGE.config)
    inspected = {
        "Id": digest(IMAGE.config),
        "RepoTags": [IMAGE.reference],
        "RootFS": {"Layers": IMAGE.diff_ids},
        "Config": config["config"],
        "Architecture": "amd64",
    }
    program.with_name("docker.inspect").write_text(json.dumps([inspected]))
    program.with_name("docker.archive").write_bytes(IMAGE.old_archive())
    return program


def export(storage: Path, held: int = 1) -> dict[str, Any]:
    request = {"reference": IMAGE.reference, "layers": IMAGE.diff_ids, "held": held, "storage_folder": str(storage)}
    return image_export.export(request)


def test_an_export_names_its_files_by_their_content_and_is_used_again(docker: Path, tmp_path: Path) -> None:
    answer = export(tmp_path / "storage")
    folder = Path(answer["folder"])
    identity = image_identity(IMAGE.diff_ids, json.loads(IMAGE.config)["config"], "amd64")
    assert folder == tmp_path / "storage/images/outgoing" / identity[7:]
    assert [file["path"] for file in answer["files"]] == ["config.json", f"{digest(PATCH)[7:]}.tar"]
    for file in answer["files"]:
        content = (folder / file["path"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file["size_bytes"], file["sha256"])
    assert export(tmp_path / "storage") == answer
    assert docker.with_name("docker.calls").read_text() == "save\n" * 2
    assert len(export(tmp_path / "storage", held=0)["files"]) == 3
    assert docker.with_name("docker.calls").read_text() == "save\n" * 3


@pytest.mark.usefixtures("docker")
def test_what_was_written_for_a_share_that_was_given_up_goes_after_a_day(tmp_path: Path) -> None:
    folder = Path(export(tmp_path / "storage")["folder"])
    forgotten, young = folder.with_name("forgotten"), folder.with_name("young")
    for other, hours in ((forgotten, 25), (young, 23)):
        other.mkdir()
        written = time.time() - hours * 3600
        os.utime(other, (written, written))
    identity = f"sha256:{folder.name}"
    answer = image_export.discard_export({"storage_folder": str(tmp_path / "storage"), "identity": identity})
    assert answer == {"removed": True}
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == ["young"]


def test_a_layer_that_is_not_what_it_is_called_is_not_exported(docker: Path, tmp_path: Path) -> None:
    whole = IMAGE.old_archive()
    place = whole.index(PATCH) + 2000
    docker.with_name("docker.archive").write_bytes(whole[:place] + b"?" + whole[place + 1 :])
    with pytest.raises(NodeTaskError, match=f"layer {digest(PATCH)} of the image came out of Docker as sha256:"):
        export(tmp_path / "storage")
    folder = next((tmp_path / "storage/images/outgoing").glob("[0-9a-f]*"))
    assert [path.name for path in folder.iterdir()] == ["config.json"]


@pytest.mark.parametrize("cut", [0, 10_000, 10_240, -1])
def test_a_save_that_breaks_off_fails_with_dockers_words(docker: Path, tmp_path: Path, cut: int) -> None:
    docker.with_name("docker.archive").write_bytes(IMAGE.old_archive()[:cut])
    docker.with_name("docker.words").write_text("no space left on device")
    with pytest.raises(NodeTaskError, match="no space left on device"):
        export(tmp_path / "storage")
    assert not list((tmp_path / "storage").rglob("*.json"))


def test_an_image_of_other_layers_is_not_exported(docker: Path, tmp_path: Path) -> None:
    assert docker.exists()
    request = {"reference": IMAGE.reference, "layers": DOUBLED.diff_ids, "held": 0, "storage_folder": str(tmp_path)}
    with pytest.raises(NodeTaskError, match=r"has 2 layers .* expected were 3 .* another image under the same name"):
        image_export.export(request)


def composed(kind: str, image: HandMade, held: Held, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    for diff_id, layer in zip(image.diff_ids, image.layers, strict=True):
        (folder / image_missing.layer_file(diff_id)).write_bytes(layer)
    buffer = io.BytesIO()
    write_archive(kind, Parts(image.config, image.diff_ids, held, folder), "gb10-serving/loading:x", buffer)
    with tarfile.open(fileobj=io.BytesIO(buffer.getvalue())) as tar:
        return {member.name: cast(IO[bytes], tar.extractfile(member)).read() for member in tar}


def test_the_classic_archive_names_held_layers_and_leaves_them_out(tmp_path: Path) -> None:
    members = composed(CLASSIC, DOUBLED, Held(1), tmp_path / "files")
    (entry,) = json.loads(members.pop("manifest.json"))
    assert members.pop(entry["Config"]) == DOUBLED.config
    assert entry["RepoTags"] == ["gb10-serving/loading:x"]
    assert [members.get(name) for name in entry["Layers"]] == [LOW, PATCH, LOW]
    assert len(members) == 2
    members = composed(CLASSIC, IMAGE, Held(2), tmp_path / "others")
    assert len(members) == 2


def test_the_layout_names_held_layers_by_the_blobs_that_hold_them(tmp_path: Path) -> None:
    held = index_of(IMAGE.layout("gzip"), IMAGE.diff_ids).layers[:1]
    members = composed(CONTAINERD, IMAGE, Held(1, held), tmp_path / "files")
    (top,) = json.loads(members["index.json"])["manifests"]
    assert top["annotations"] == {"io.containerd.image.name": "docker.io/gb10-serving/loading:x"}
    manifest = json.loads(members[f"blobs/sha256/{top['digest'][7:]}"])
    low, patch = manifest["layers"]
    packed = compressed(LOW, "gzip")
    assert (low["digest"], low["size"], low["mediaType"][-8:]) == (digest(packed), len(packed), "tar+gzip")
    assert (patch["digest"], patch["size"], patch["mediaType"][-4:]) == (digest(PATCH), len(PATCH), ".tar")
    blobs = {f"blobs/{blob['digest'].replace(':', '/')}" for blob in (top, manifest["config"], patch)}
    assert members.keys() == {"index.json", "oci-layout", *blobs}


@given(st.lists(st.sampled_from("ab"), max_size=6), st.lists(st.sampled_from("ab"), max_size=6))
def test_the_common_prefix_is_equal_and_longest(one: list[str], other: list[str]) -> None:
    count = common_prefix(one, other)
    assert one[:count] == other[:count]
    assert one[: count + 1] != other[: count + 1] or count == len(one) == len(other)


def test_room_is_asked_for_with_names_and_figures(tmp_path: Path) -> None:
    store = ImageStore(CLASSIC, "1", "arm64", tmp_path / "docker")
    check_room(tmp_path / "incoming", 1000, store, 1000)
    with pytest.raises(NodeTaskError, match=rf"{tmp_path} has \d+ bytes free and 2{'0' * 16}1 are needed .*/docker:"):
        check_room(tmp_path / "incoming", 1, store, 10**17)


def test_a_file_that_is_there_already_needs_no_room(tmp_path: Path) -> None:
    (tmp_path / image_missing.layer_file("sha256:a")).write_bytes(b"123")
    assert image_missing.arrived(tmp_path, "sha256:a", 3)
    assert not image_missing.arrived(tmp_path, "sha256:a", 4)
    assert not image_missing.arrived(tmp_path, "sha256:b", 3)


def given_up(incoming: Path, name: str) -> FolderState:
    """Returns the folder of a transfer that ended in the middle: one layer in place, another one begun."""
    folder, beginnings = incoming / name, incoming / f".{name}.transfer" / "parts"
    for path in (folder / "layer.tar", beginnings / "begun"):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"123")
    return FolderState(folder)


def ask_what_is_missing(storage: Path, image: HandMade, folder: str) -> dict[str, Any]:
    identity = image_identity(image.diff_ids, json.loads(image.config)["config"], "amd64")
    return image_missing.missing(
        {
            "reference": image.reference,
            "identity": identity,
            "layers": image.diff_ids,
            "architecture": "amd64",
            "storage_folder": str(storage),
            "folder": str(storage / "images/incoming" / folder),
        }
    )


def test_what_other_images_left_goes_when_nobody_has_it_and_an_image_is_asked_for(
    docker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert docker.exists()
    incoming = tmp_path / "images" / "incoming"
    for name in ("own", "old", "begun"):
        given_up(incoming, name)
    shutil.rmtree(incoming / "begun")
    (incoming / ".loaded.transfer").mkdir()
    used = given_up(incoming, "used")
    assert used.try_lock()
    assert not ask_what_is_missing(tmp_path, DOUBLED, "own")["present"]
    assert sorted(path.name for path in incoming.iterdir()) == [".own.transfer", ".used.transfer", "own", "used"]
    assert [path.name for path in incoming.rglob("*") if path.is_file()].count("begun") == 2
    told = capsys.readouterr().err
    assert [name for name in ("own", "old", "begun", "loaded", "used") if f"removed {incoming}/{name}:" in told] == [
        "old",
        "begun",
    ]
    used.unlock()
    ask_what_is_missing(tmp_path, DOUBLED, "own")
    assert sorted(path.name for path in incoming.iterdir()) == [".own.transfer", "own"]
    assert (incoming / "own" / "layer.tar").read_bytes() == b"123"


def test_what_an_image_left_goes_when_the_node_has_it_by_now(docker: Path, tmp_path: Path) -> None:
    assert docker.exists()
    given_up(tmp_path / "images" / "incoming", "own")
    assert ask_what_is_missing(tmp_path, IMAGE, "own")["present"]
    assert list((tmp_path / "images" / "incoming").iterdir()) == []


def test_what_cannot_be_removed_is_told_and_stops_nothing(
    docker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert docker.exists()
    given_up(tmp_path / "images" / "incoming", "old")
    (tmp_path / "images" / "incoming" / ".old.transfer" / "lock").mkdir()
    assert not ask_what_is_missing(tmp_path, DOUBLED, "own")["present"]
    assert "old is left over from a transfer that was given up and cannot be removed" in capsys.readouterr().err


def test_layers_are_loaded_while_the_transfer_still_has_their_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    folder = f"/storage/images/incoming/{'a' * 32}"
    free = {"docker_free_bytes": 1 << 50, "storage_free_bytes": 1 << 50}
    answers = {
        "image-missing": {"present": False, "held": 0, **free},
        "image-export": {"folder": "/outgoing", "files": []},
        "image-load": {"loaded": True, "needs_all": False, "why": None},
        "image-discard-export": {"removed": True},
    }

    def run_on_node(_: Connection, storage: str, verb: str, request: dict[str, Any], **__: Any) -> Any:
        assert storage == "/storage"
        assert request.get("folder", folder) == folder
        said.append(verb)
        return answers[verb]

    @contextmanager
    def brought(source: Party, exported: str, receivers: list[Receiver], *_: Any) -> Iterator[dict[str, Received]]:
        assert (source.node, exported) == ("a", "/outgoing")
        assert [(one.party.node, one.folder) for one in receivers] == [("b", folder)]
        said.append("taken")
        yield {"b": Received("b", 5, 0)}
        said.append("given back")

    monkeypatch.setattr(image_sharing, "run_on_node", run_on_node)
    monkeypatch.setattr(image_sharing, "brought", brought)
    source, receiver = delivery("a", "b").parties.values()
    image = SharedImage(IMAGE.reference, f"sha256:{'a' * 64}", tuple(IMAGE.diff_ids), "amd64")
    assert share_image(image, source, [receiver]) == {"b": 5}
    assert said == ["image-missing", "image-export", "taken", "image-load", "given back", "image-discard-export"]


def test_an_image_for_another_processor_is_refused_with_both_names() -> None:
    store = ImageStore(CLASSIC, "1", "arm64", Path("/"))
    refuse_other_architecture(store, "arm64")
    with pytest.raises(NodeTaskError, match="the image is for amd64 and this node is arm64"):
        refuse_other_architecture(store, "amd64")


def image(number: int, layers: str, chain: str = "one", names: tuple[str, ...] | None = None) -> dict[str, Any]:
    return {
        "Id": f"sha256:{number}",
        "RootFS": {"Layers": list(layers)},
        "RepoTags": [f"gb10-serving/c:{number}"] if names is None else list(names),
        "Config": {"Labels": {"gb10-serving.chain.name": chain}},
        "Created": "2026-11-30T00:00:00Z",
        "Metadata": {"LastTagTime": f"2026-11-30T10:00:00.{number:03}Z"},
    }


def names(images: list[dict[str, Any]], keep: int, current: int) -> list[str]:
    return [name for name, _ in image_prune.surplus(images, "one", keep, f"sha256:{current}")]


def test_the_oldest_go_first_and_steps_of_what_stays_are_not_counted() -> None:
    images = [image(1, "a1"), image(2, "a2"), image(3, "a"), image(4, "a4"), image(5, "a45"), image(6, "a4567")]
    assert names(images, 2, 6) == []
    assert names(images, 1, 6) == ["gb10-serving/c:1"]
    assert names(images, 0, 6) == ["gb10-serving/c:1", "gb10-serving/c:2"]
    assert names(images, 0, 2) == [f"gb10-serving/c:{number}" for number in (1, 4, 5, 6)]


def test_a_rollback_keeps_the_newest_others() -> None:
    images = [image(number, f"a{number}") for number in range(1, 6)]
    assert names(images, 2, 1) == ["gb10-serving/c:2", "gb10-serving/c:3"]


CHAINS = st.sampled_from(["one", "two"])
NAMES = st.lists(st.sampled_from(["gb10-serving/x:1", "gb10-serving/y:1", "else/x:1", "x:1"]), unique=True)
STACKS = st.lists(st.tuples(st.text("abc", min_size=1, max_size=4), CHAINS, NAMES), min_size=1, max_size=8)


@given(STACKS, st.integers(0, 4), st.data())
def test_only_our_names_of_that_chain_ever_go(stacks: Any, keep: int, data: st.DataObject) -> None:
    images = [
        image(number, layers, chain, tuple(f"{name}.{number}" for name in own))
        for number, (layers, chain, own) in enumerate(stacks)
    ]
    current = data.draw(st.integers(0, len(images) - 1))
    gone = image_prune.surplus(images, "one", keep, f"sha256:{current}")
    by_id = {one["Id"]: one for one in images}
    for name, identifier in gone:
        assert identifier != f"sha256:{current}"
        assert name.startswith("gb10-serving/")
        assert name in by_id[identifier]["RepoTags"]
        assert by_id[identifier]["Config"]["Labels"]["gb10-serving.chain.name"] == "one"
    candidates = [one for one in images if one["Config"]["Labels"]["gb10-serving.chain.name"] == "one"]
    stays = {one["Id"] for one in candidates} - {identifier for _, identifier in gone}
    assert len(stays) >= min(keep, len(candidates))


def test_times_are_compared_whatever_their_offset_and_digits() -> None:
    ordered = [
        "0001-01-01T00:00:00Z",
        "2026-11-30T10:00:00Z",
        "2026-11-30T10:00:00.000000001Z",
        "2026-11-30T12:00:00.5+02:00",
        "2026-11-30T10:00:00.51Z",
        "2026-11-30T09:00:01-01:00",
    ]
    found = [image_prune._nanoseconds(text) for text in ordered]  # pyright: ignore[reportPrivateUsage]
    assert found == sorted(found)
    assert len(set(found)) == len(found)
    assert image_prune._nanoseconds("") == 0  # pyright: ignore[reportPrivateUsage]
