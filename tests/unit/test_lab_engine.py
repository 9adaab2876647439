import json
from pathlib import Path

import pytest

from lab import docker_engine, mounts
from lab.docker_engine import DockerEngine, docker_architecture
from lab.errors import LabError
from lab.private_engine import PrivateEngine


def _silent(text: str) -> None:
    del text


def test_an_engine_that_nobody_started_does_not_answer(tmp_path: Path) -> None:
    engine = PrivateEngine(tmp_path / "run", tmp_path / "data")
    assert not engine.was_started
    assert not engine.answers


def test_a_stale_record_is_no_engine(tmp_path: Path) -> None:
    engine = PrivateEngine(tmp_path / "run", tmp_path / "data")
    engine.run_folder.mkdir()
    (engine.run_folder / "dockerd.process").write_text("1 0\n")
    (engine.run_folder / "docker.sock").touch()
    assert engine.was_started
    assert not engine.answers
    engine.stop()
    assert not engine.was_started


@pytest.mark.parametrize(("machine", "name"), [("x86_64", "amd64"), ("aarch64", "arm64")])
def test_architectures_have_the_names_of_images(monkeypatch: pytest.MonkeyPatch, machine: str, name: str) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert docker_architecture() == name


def test_an_unknown_architecture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "s390x")
    with pytest.raises(LabError, match="s390x"):
        docker_architecture()


def test_our_own_engine_wins_once_it_was_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ours, theirs = PrivateEngine(tmp_path / "run", tmp_path / "data"), DockerEngine("unix:///theirs")
    monkeypatch.setattr(docker_engine, "private_engine", lambda: ours)
    monkeypatch.setattr(docker_engine, "_foreign_engine", lambda: theirs)
    assert docker_engine.existing_engine() == theirs
    ours.run_folder.mkdir()
    assert docker_engine.existing_engine() == DockerEngine(ours.host)


def test_without_root_nothing_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ours = PrivateEngine(tmp_path / "run", tmp_path / "data")
    monkeypatch.setattr(docker_engine, "private_engine", lambda: ours)
    monkeypatch.setattr(docker_engine, "_foreign_engine", lambda: None)
    monkeypatch.setattr("lab.places.lock_folder", lambda: tmp_path / "locks")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(LabError, match="needs root"), docker_engine.engine_in_use(_silent):
        pass
    assert not ours.was_started


def test_settings_stay_inside_their_own_folders(tmp_path: Path) -> None:
    engine = PrivateEngine(tmp_path / "run", tmp_path / "data")
    settings = engine._dockerd_settings()
    for key in ("data-root", "exec-root", "pidfile", "containerd"):
        assert Path(str(settings[key])).is_relative_to(tmp_path)
    assert not settings["iptables"]
    assert settings["bridge"] == "none"
    json.dumps(settings)


def test_mount_points_are_found_innermost_first(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "22 1 254:0 / / rw - ext4 /dev/vda rw",
        "30 22 0:30 / /srv/a\\040b rw - tmpfs tmpfs rw",
        "31 30 0:31 / /srv/a\\040b/c rw - tmpfs tmpfs rw",
        "32 22 0:32 / /srv/a\\040bc rw - tmpfs tmpfs rw",
    ]
    monkeypatch.setattr(Path, "read_text", lambda _self: "\n".join(lines))
    assert mounts.mount_points(Path("/srv/a b")) == [Path("/srv/a b/c"), Path("/srv/a b")]
