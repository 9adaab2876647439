import hashlib
import json
import os
import tarfile
from pathlib import Path

import pytest

from lab.archives import write_layer
from ops.docker_archive import write_docker_archive

_MADE_AFTER = 2_000_000_000.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for folder in ("dev", "etc", "usr/bin", "tmp"):
        (root / folder).mkdir(parents=True)
    (root / "dev/null").write_text("not a device here")
    (root / "tmp/leftover").write_text("leftover")
    (root / "etc/from-package").write_text("package")
    os.utime(root / "etc/from-package", (1_000_000_000, 1_000_000_000))
    (root / "etc/made-by-installing").write_text("made")
    os.utime(root / "etc/made-by-installing", (2_100_000_000, 2_100_000_000))
    (root / "usr/bin/program").write_text("program")
    os.link(root / "usr/bin/program", root / "usr/bin/same-program")
    (root / "bin").symlink_to("usr/bin")
    return root


def _members(layer: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(layer) as tar:
        return {member.name: member for member in tar.getmembers()}


def test_the_diff_id_is_the_hash_of_the_layer(root: Path, tmp_path: Path) -> None:
    layer = tmp_path / "layer.tar"
    diff_id = write_layer(root, layer, _MADE_AFTER)
    assert diff_id == f"sha256:{hashlib.sha256(layer.read_bytes()).hexdigest()}"


def test_a_layer_holds_the_root_without_what_the_engine_provides(root: Path, tmp_path: Path) -> None:
    write_layer(root, tmp_path / "layer.tar", _MADE_AFTER)
    members = _members(tmp_path / "layer.tar")
    assert list(members) == [
        "bin", "dev", "etc", "tmp", "usr", "etc/from-package", "etc/made-by-installing", "usr/bin",
        "usr/bin/program", "usr/bin/same-program",
    ]  # fmt: skip
    assert members["bin"].issym()
    assert members["bin"].linkname == "usr/bin"
    assert members["usr/bin/same-program"].islnk()
    assert members["usr/bin/same-program"].linkname == "usr/bin/program"


def test_times_are_those_of_packages_or_fixed(root: Path, tmp_path: Path) -> None:
    write_layer(root, tmp_path / "layer.tar", _MADE_AFTER)
    members = _members(tmp_path / "layer.tar")
    assert members["etc/from-package"].mtime == 1_000_000_000
    assert members["etc/made-by-installing"].mtime == 0


def test_the_moment_of_making_leaves_no_trace(root: Path, tmp_path: Path) -> None:
    os.utime(root / "etc", (2_000_000_001, 2_000_000_001))
    first = write_layer(root, tmp_path / "first.tar", _MADE_AFTER)
    for changed in ("etc", "etc/made-by-installing"):
        os.utime(root / changed, (2_200_000_000, 2_200_000_000))
    assert write_layer(root, tmp_path / "second.tar", _MADE_AFTER) == first


def test_an_archive_has_what_docker_load_reads(root: Path, tmp_path: Path) -> None:
    layer, archive = tmp_path / "layer.tar", tmp_path / "archive.tar"
    diff_id = write_layer(root, layer, _MADE_AFTER)
    write_docker_archive(layer, diff_id, "gb10-serving/test:1", "arm64", archive)
    with tarfile.open(archive) as tar:
        contents = {member.name: _content(tar, member) for member in tar.getmembers()}
    (entry,) = json.loads(contents["manifest.json"])
    config = json.loads(contents[entry["Config"]])
    assert entry["RepoTags"] == ["gb10-serving/test:1"]
    assert entry["Config"] == f"{hashlib.sha256(contents[entry['Config']]).hexdigest()}.json"
    assert config["architecture"] == "arm64"
    assert config["rootfs"] == {"type": "layers", "diff_ids": [diff_id]}
    assert contents[entry["Layers"][0]] == layer.read_bytes()


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None
    return file.read()
