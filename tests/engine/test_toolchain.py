"""How the engine is found, downloaded or built, with fake programs throughout; nothing here takes long."""

import io
import json
import os
import shutil
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ops.toolchain import Platform, Surroundings, Toolchain, ToolchainError, ToolchainPart, ensure_toolchain, official
from ops.toolchain.building import MANIFEST, Builder
from ops.toolchain.parts import COMMAND_PROVIDER, DOCKER_PROVIDER, LANGUAGE_PYTHON, PULUMI, Part
from tests.engine.loopback_ssh import silent_port

PARTS = (PULUMI, LANGUAGE_PYTHON, DOCKER_PROVIDER, COMMAND_PROVIDER)
BUILT, OFFICIAL = "built from Go modules", "official"

# Stands in for Go: says a version, "builds" by writing down what it was built from, and keeps a log of its calls.
FAKE_GO = """#!/bin/sh
PATH=/usr/bin:/bin
echo "$(basename "$PWD") $*" >> {log}
case "$1 $2" in
"env GOVERSION") echo {version} ;;
"mod download") ;;
"list -mod=readonly") echo {module} ;;
build*)
    {before}
    while [ "$1" != -o ]; do shift; done
    {{ echo "#!/bin/sh"; echo "# built by {version} in $PWD"; cat main.go; }} > "$2"
    chmod +x "$2"
    {after}
    ;;
esac
"""


@dataclass
class Machine:
    """A machine with nothing on it but what a test puts there."""

    root: Path
    releases: str = "http://127.0.0.1:9/releases"
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True)
        for part in PARTS:
            folder = self.root / "engine" / part.name
            folder.mkdir(parents=True)
            (folder / "go.mod").write_text(f"module {part.name}\n\ngo 1.26.6\n")
            (folder / "main.go").write_text("# version one\n")
        (self.root / "engine" / LANGUAGE_PYTHON.name / "executor").mkdir()
        for script in LANGUAGE_PYTHON.scripts:
            file = self.root / "module" / script.path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("#!/bin/sh\n")

    @property
    def path(self) -> Path:
        return self.root / "bin"

    @property
    def engine_cache(self) -> Path:
        return self.root / "cache" / "engine"

    @property
    def surroundings(self) -> Surroundings:
        return Surroundings(
            sources=self.root / "engine",
            cache=self.root / "cache",
            environment={"PATH": str(self.path), "HOME": str(self.root / "home")},
            releases=self.releases,
            platform=Platform("linux", "arm64"),
        )

    def install_go(self, version: str = "go1.26.8", before: str = ":", after: str = ":") -> None:
        text = FAKE_GO.format(
            log=self.root / "go.log", version=version, module=self.root / "module", before=before, after=after
        )
        self.program(self.path / "go", text)

    def program(self, path: Path, text: str = "#!/bin/sh\n") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def install_pulumi(self, version: str = "v3.280.0") -> None:
        self.program(self.path / "pulumi", f"#!/bin/sh\necho {version}\n")
        self.program(self.path / "pulumi-language-python")

    def install_plugin(self, part: Part, home: str = "home/.pulumi") -> Path:
        folder = f"resource-{part.binary.removeprefix('pulumi-resource-')}-v{part.version}"
        return self.program(self.root / home / "plugins" / folder / part.binary)

    def ensure(self) -> Toolchain:
        return ensure_toolchain(self.said.append, self.surroundings)

    def builds(self) -> list[str]:
        """The parts that were built, in order."""
        log = self.root / "go.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.split()[0] for line in lines if line.split()[1] == "build"]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("ops.toolchain.golang._USUAL_PLACES", ())
    return Machine(tmp_path)


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def origins(toolchain: Toolchain) -> list[str]:
    return [part.origin for part in toolchain.parts]


class TestBuilding:
    """Nothing official can be had."""

    def test_everything_is_built_and_put_in_place(self, machine: Machine) -> None:
        machine.install_go()
        toolchain = machine.ensure()
        assert machine.builds() == ["pulumi", "language-python", "docker-provider", "command-provider"]
        assert [(part.name, part.version) for part in toolchain.parts] == [
            *(("pulumi", "3.274.1"), ("language-python", "3.60.0")),
            *(("docker-provider", "5.2.0"), ("command-provider", "1.2.1")),
        ]
        assert origins(toolchain) == [BUILT] * 4
        assert toolchain.home == machine.root / "cache" / "pulumi-home"
        assert all(os.access(part.path, os.X_OK) for part in toolchain.parts)
        # The engine looks for these beside itself, and for providers in the plugin cache.
        assert sorted(file.name for file in toolchain.pulumi.parent.iterdir()) == [
            *("pulumi", "pulumi-language-python", "pulumi-language-python-exec", "pulumi-resource-pulumi-python")
        ]
        assert all(os.access(file, os.X_OK) for file in toolchain.pulumi.parent.iterdir())
        plugins = toolchain.home / "plugins"
        assert toolchain.part("docker-provider").path == plugins / "resource-docker-v5.2.0" / "pulumi-resource-docker"
        assert (
            toolchain.part("command-provider").path == plugins / "resource-command-v1.2.1" / "pulumi-resource-command"
        )

    def test_the_recipe(self, machine: Machine) -> None:
        machine.install_go()
        machine.ensure()
        build = next(
            line
            for line in (machine.root / "go.log").read_text().splitlines()
            if line.startswith("docker-provider build")
        )
        for wanted in ("-mod=readonly", "-trimpath", "-tags no_compose", "-X main.version=5.2.0"):
            assert wanted in build

    def test_nothing_is_built_twice_and_that_is_fast(self, machine: Machine) -> None:
        machine.install_go()
        first = machine.ensure()
        machine.said.clear()
        started = time.monotonic()
        assert machine.ensure() == first
        assert time.monotonic() - started < 0.3
        assert len(machine.builds()) == 4
        assert machine.said == []

    def test_changed_sources_build_that_part_again(self, machine: Machine) -> None:
        machine.install_go()
        machine.ensure()
        (machine.root / "engine" / "command-provider" / "main.go").write_text("# version two\n")
        path = machine.ensure().part("command-provider").path
        assert machine.builds()[4:] == ["command-provider"]
        assert "version two" in path.read_text()

    @pytest.mark.parametrize("change", ["a new file", "a renamed file", "a go.sum", "a deeper file"])
    def test_every_file_counts(self, machine: Machine, change: str) -> None:
        builder = Builder(machine.surroundings, machine.said.append)
        before = builder.content_hash(COMMAND_PROVIDER)
        folder = machine.root / "engine" / "command-provider"
        match change:
            case "a new file":
                (folder / "new.go").write_text("")
            case "a renamed file":
                (folder / "main.go").rename(folder / "other.go")
            case "a go.sum":
                (folder / "go.sum").write_text("h1:x\n")
            case _:
                (folder / "below").mkdir()
                (folder / "below" / "x.go").write_text("")
        assert builder.content_hash(COMMAND_PROVIDER) != before

    def test_the_recipe_and_the_platform_count_but_not_what_is_said(self, machine: Machine) -> None:
        builder = Builder(machine.surroundings, machine.said.append)
        hashes = {
            builder.content_hash(COMMAND_PROVIDER),
            builder.content_hash(replace(COMMAND_PROVIDER, size="for ever")),
            builder.content_hash(replace(COMMAND_PROVIDER, linked="main.version=1.2.2")),
            Builder(replace(machine.surroundings, platform=Platform("darwin", "arm64")), print).content_hash(
                COMMAND_PROVIDER
            ),
        }
        assert len(hashes) == 3

    def test_another_go_builds_again(self, machine: Machine) -> None:
        machine.install_go("go1.26.8")
        machine.ensure()
        machine.install_go("go1.27.0")
        assert "go1.27.0" in machine.ensure().part("docker-provider").path.read_text()
        assert len(machine.builds()) == 8

    def test_what_is_built_works_without_go(self, machine: Machine) -> None:
        machine.install_go()
        first = machine.ensure()
        (machine.path / "go").unlink()
        assert machine.ensure() == first

    def test_a_program_that_was_removed_is_built_again(self, machine: Machine) -> None:
        machine.install_go()
        toolchain = machine.ensure()
        toolchain.pulumi.unlink()
        toolchain.part("docker-provider").path.unlink()
        next(machine.engine_cache.glob("docker-provider-*/pulumi-resource-docker")).unlink()
        assert machine.ensure() == toolchain
        assert all(part.path.exists() for part in toolchain.parts)
        assert machine.builds()[4:] == ["docker-provider"]

    def test_a_failed_build_leaves_nothing_and_says_what_go_said(self, machine: Machine) -> None:
        machine.install_go(after="echo 'main.go:3: undefined: x' >&2; exit 1")
        with pytest.raises(ToolchainError) as caught:
            machine.ensure()
        text = str(caught.value)
        assert "building pulumi failed" in text
        assert "main.go:3: undefined: x" in text
        assert "\n" not in text
        assert not list(machine.engine_cache.glob("pulumi-*/"))
        machine.install_go()
        assert origins(machine.ensure()) == [BUILT] * 4

    def test_half_a_build_does_not_count(self, machine: Machine) -> None:
        machine.install_go()
        machine.ensure()
        whole = next(machine.engine_cache.glob("command-provider-*/"))
        (machine.engine_cache / f".{whole.name}-abc").mkdir()
        whole.rename(machine.engine_cache / f".{whole.name}-abc" / "new")
        shutil.rmtree(machine.root / "cache" / "pulumi-home")
        machine.ensure()
        assert machine.builds()[4:] == ["command-provider"]
        assert not list(machine.engine_cache.glob(".*/"))

    def test_two_at_the_same_time_build_once(self, machine: Machine) -> None:
        machine.install_go(before="sleep 0.3")
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda _: machine.ensure(), range(4)))
        assert len(set(results)) == 1
        assert sorted(machine.builds()) == sorted(part.name for part in PARTS)
        assert any("another process is building pulumi" in line for line in machine.said)
        leftovers = [file.name for file in machine.engine_cache.iterdir() if file.name.startswith(".")]
        assert all(name.endswith(".lock") for name in leftovers)

    def test_the_lock_of_a_process_that_died_is_free(self, machine: Machine) -> None:
        machine.install_go()
        machine.ensure()
        shutil.rmtree(next(machine.engine_cache.glob("pulumi-*/")))
        shutil.rmtree(next(machine.engine_cache.glob("program-*/")))
        started = time.monotonic()
        machine.ensure()
        assert time.monotonic() - started < 2

    def test_an_interrupted_build_ends_go(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        machine.install_go(before=f"echo $$ > {machine.root}/pid; sleep 60")
        monkeypatch.setattr("ops.toolchain.golang._REPORT_INTERVAL", 0.2)

        def interrupt(text: str) -> None:
            if "so far" in text and (machine.root / "pid").exists():
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            ensure_toolchain(interrupt, machine.surroundings)
        group = int((machine.root / "pid").read_text())
        deadline = time.monotonic() + 5
        while _exists(group) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not _exists(group)
        assert not list(machine.engine_cache.glob("pulumi-*/"))

    def test_a_chosen_home_is_used(self, machine: Machine) -> None:
        machine.install_go()
        chosen = machine.root / "mine"
        surroundings = machine.surroundings
        surroundings = replace(surroundings, environment={**surroundings.environment, "PULUMI_HOME": str(chosen)})
        toolchain = ensure_toolchain(machine.said.append, surroundings)
        assert toolchain.home == chosen
        assert (chosen / "plugins" / "resource-docker-v5.2.0" / MANIFEST).exists()


class TestGo:
    """What is said if Go is not there or not usable."""

    def test_missing(self, machine: Machine) -> None:
        with pytest.raises(
            ToolchainError, match=r"there is no Go .* Install Go 1\.26\.6 or newer from https://go\.dev/dl"
        ):
            machine.ensure()

    def test_too_old(self, machine: Machine) -> None:
        machine.install_go("go1.19.8")
        with pytest.raises(ToolchainError, match=r"\(go1\.19\.8\) is too old\. Install Go 1\.26\.6"):
            machine.ensure()

    def test_cannot_fetch_the_version_it_needs(self, machine: Machine) -> None:
        machine.program(machine.path / "go", "#!/bin/sh\necho 'toolchain not available' >&2; exit 1\n")
        with pytest.raises(ToolchainError, match=r"not usable: .*toolchain not available\. Install|available Install"):
            machine.ensure()

    def test_no_sources(self, machine: Machine) -> None:
        machine.install_go()
        shutil.rmtree(machine.root / "engine" / "docker-provider")
        with pytest.raises(ToolchainError, match=r"docker-provider has no go\.mod"):
            machine.ensure()

    def test_no_room(self, machine: Machine) -> None:
        (machine.root / "cache").write_text("a file is in the way")
        machine.install_go()
        with pytest.raises(ToolchainError, match="GB10_SERVING_CACHE"):
            machine.ensure()


class Releases(ThreadingHTTPServer):
    """A release server on the loopback interface."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/releases"

    def offer(self, path: str, *names: str) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name in names:
                content = f"#!/bin/sh\n# official {name}\n".encode()
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(content), 0o755
                archive.addfile(member, io.BytesIO(content))
        self.files[f"/releases/{path}"] = buffer.getvalue()

    def offer_all(self) -> None:
        self.offer(
            "sdk/pulumi-v3.274.1-linux-arm64.tar.gz", "pulumi/pulumi", "pulumi/pulumi-language-python", "../evil"
        )
        for name, version in (("docker", "5.2.0"), ("command", "1.2.1")):
            binary = f"pulumi-resource-{name}"
            self.offer(f"plugins/{binary}-v{version}-linux-arm64.tar.gz", binary, "README.md")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Releases)
        self.server.asked.append(self.path)
        content = self.server.files.get(self.path)
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass


@pytest.fixture
def releases(machine: Machine) -> Iterator[Releases]:
    with Releases() as server:
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01), daemon=True)
        thread.start()
        machine.releases = server.address
        yield server
        server.shutdown()


class TestDownloads:
    """Official releases that are not installed."""

    def test_official_releases_are_preferred_to_building(self, machine: Machine, releases: Releases) -> None:
        releases.offer_all()
        toolchain = machine.ensure()
        assert origins(toolchain) == [OFFICIAL] * 4
        assert all(os.access(part.path, os.X_OK) for part in toolchain.parts)
        assert toolchain.home == machine.root / "cache" / "pulumi-home"
        assert "official" in toolchain.part("docker-provider").path.read_text()
        assert len(releases.asked) == 3
        assert not [file for file in machine.root.rglob("evil") if file.parent != toolchain.pulumi.parent]

    def test_they_are_downloaded_once(self, machine: Machine, releases: Releases) -> None:
        releases.offer_all()
        first = machine.ensure()
        assert machine.ensure() == first
        assert len(releases.asked) == 3

    def test_names_of_other_platforms(self, machine: Machine, releases: Releases) -> None:
        machine.install_go()
        surroundings = replace(machine.surroundings, platform=Platform("darwin", "amd64"))
        ensure_toolchain(machine.said.append, surroundings)
        assert releases.asked == ["/releases/sdk/pulumi-v3.274.1-darwin-x64.tar.gz"]

    def test_what_is_missing_there_is_built(self, machine: Machine, releases: Releases) -> None:
        machine.install_go()
        releases.offer_all()
        del releases.files["/releases/plugins/pulumi-resource-command-v1.2.1-linux-arm64.tar.gz"]
        toolchain = machine.ensure()
        assert origins(toolchain) == [OFFICIAL, OFFICIAL, OFFICIAL, BUILT]
        assert any("no official command-provider" in line and "404" in line for line in machine.said)

    def test_failure_is_said_and_remembered_for_a_day(self, machine: Machine, releases: Releases) -> None:
        machine.install_go()
        machine.ensure()
        assert len(releases.asked) == 1  # not once more for each provider
        assert any("no official pulumi" in line and "404" in line for line in machine.said)
        for folder in ("engine", "pulumi-home"):
            for made in (machine.root / "cache" / folder).iterdir():
                if made.is_dir():
                    shutil.rmtree(made)
        machine.ensure()
        assert len(releases.asked) == 1
        memory = machine.engine_cache / "memory.json"
        known = json.loads(memory.read_text())
        known["failures"][releases.address]["at"] -= 25 * 3600
        memory.write_text(json.dumps(known))
        for made in machine.engine_cache.iterdir():
            if made.is_dir():
                shutil.rmtree(made)
        machine.ensure()
        assert len(releases.asked) == 2

    def test_without_go_it_is_tried_again_at_once(self, machine: Machine, releases: Releases) -> None:
        with pytest.raises(ToolchainError):
            machine.ensure()
        releases.offer_all()
        assert origins(machine.ensure()) == [OFFICIAL] * 4

    def test_what_was_built_is_kept_without_asking(self, machine: Machine, releases: Releases) -> None:
        machine.install_go()
        machine.ensure()
        (machine.engine_cache / "memory.json").unlink()
        machine.ensure()
        assert len(releases.asked) == 1

    def test_a_damaged_archive_is_not_used(self, machine: Machine, releases: Releases) -> None:
        machine.install_go()
        releases.offer_all()
        path = "/releases/sdk/pulumi-v3.274.1-linux-arm64.tar.gz"
        releases.files[path] = releases.files[path][:60]
        assert origins(machine.ensure())[0] == BUILT
        assert not list(machine.engine_cache.glob("official-*/"))

    def test_an_archive_without_the_language_host_is_not_used(self, machine: Machine, releases: Releases) -> None:
        machine.install_go()
        releases.offer("sdk/pulumi-v3.274.1-linux-arm64.tar.gz", "pulumi/pulumi")
        assert origins(machine.ensure())[0] == BUILT
        assert any("does not hold pulumi-language-python" in line for line in machine.said)

    def test_a_network_that_swallows_everything_is_given_up(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(official, "_PATIENCE", 0.3)
        machine.install_go()
        with silent_port() as port:
            machine.releases = f"http://127.0.0.1:{port}/releases"
            started = time.monotonic()
            assert origins(machine.ensure()) == [BUILT] * 4
            assert time.monotonic() - started < 3
        assert any("no official pulumi" in line for line in machine.said)


class TestInstalled:
    """Official programs that are on the machine."""

    def test_they_are_used_with_their_home(self, machine: Machine) -> None:
        machine.install_pulumi()
        machine.install_plugin(DOCKER_PROVIDER)
        machine.install_plugin(COMMAND_PROVIDER)
        toolchain = machine.ensure()
        assert toolchain.pulumi == machine.path / "pulumi"
        assert toolchain.part("pulumi").version == "3.280.0"
        assert toolchain.home == machine.root / "home" / ".pulumi"
        assert origins(toolchain) == [OFFICIAL] * 4
        assert machine.said == []

    def test_the_version_is_asked_once(self, machine: Machine) -> None:
        machine.install_pulumi()
        counted = f"#!/bin/sh\necho x >> {machine.root}/asked\necho v3.280.0\n"
        machine.program(machine.path / "pulumi", counted)
        machine.install_plugin(DOCKER_PROVIDER)
        machine.install_plugin(COMMAND_PROVIDER)
        for _ in range(3):
            machine.ensure()
        assert (machine.root / "asked").read_text() == "x\n"

    @pytest.mark.parametrize("version", ["v3.230.9", "v2.99.0", "nonsense"])
    def test_an_old_one_is_not(self, machine: Machine, version: str) -> None:
        machine.install_pulumi(version)
        machine.install_go()
        assert origins(machine.ensure()) == [BUILT] * 4

    def test_one_without_a_language_host_is_not(self, machine: Machine) -> None:
        machine.install_pulumi()
        (machine.path / "pulumi-language-python").unlink()
        machine.install_go()
        assert origins(machine.ensure())[0] == BUILT

    def test_our_own_on_path_is_not_official(self, machine: Machine) -> None:
        machine.install_go()
        built = machine.ensure()
        surroundings = machine.surroundings
        path = f"{built.pulumi.parent}{os.pathsep}{machine.path}"
        surroundings = replace(surroundings, environment={**surroundings.environment, "PATH": path})
        assert ensure_toolchain(machine.said.append, surroundings) == built

    def test_a_built_provider_does_not_go_into_the_operators_home(self, machine: Machine) -> None:
        machine.install_pulumi()
        plugin = machine.install_plugin(DOCKER_PROVIDER)
        machine.install_go()
        toolchain = machine.ensure()
        assert origins(toolchain) == [OFFICIAL, OFFICIAL, OFFICIAL, BUILT]
        assert toolchain.home == machine.root / "cache" / "pulumi-home"
        assert toolchain.part("docker-provider").path.resolve() == plugin
        assert [folder.name for folder in plugin.parents[1].iterdir()] == ["resource-docker-v5.2.0"]
        assert machine.ensure() == toolchain

    def test_an_official_provider_is_used_with_a_built_engine(self, machine: Machine) -> None:
        machine.install_plugin(COMMAND_PROVIDER)
        machine.install_go()
        assert origins(machine.ensure()) == [BUILT, BUILT, BUILT, OFFICIAL]


class TestEnvironment:
    """What has to be set to use a toolchain."""

    @staticmethod
    def toolchain(*origins_: str) -> Toolchain:
        names = ("pulumi", "language-python", "docker-provider", "command-provider")
        parts = tuple(
            ToolchainPart(name, "1", origin, Path("/p") / name)  # pyright: ignore[reportArgumentType]
            for name, origin in zip(names, origins_, strict=True)
        )
        return Toolchain(Path("/tools/pulumi"), Path("/home/x"), parts)

    def test_built(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/usr/bin:/tools:/bin")
        assert self.toolchain(*[BUILT] * 4).environment(Path("/venv")) == {
            "PATH": "/tools:/usr/bin:/bin",
            "PULUMI_HOME": "/home/x",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            "PULUMI_PYTHON_CMD": "/venv/bin/python",
        }

    def test_official(self) -> None:
        assert sorted(self.toolchain(*[OFFICIAL] * 4).environment(Path("/venv"))) == [
            *("PATH", "PULUMI_HOME", "PULUMI_SKIP_UPDATE_CHECK")
        ]

    def test_one_built_provider(self) -> None:
        variables = self.toolchain(OFFICIAL, OFFICIAL, OFFICIAL, BUILT).environment(Path("/venv"))
        assert "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION" in variables
        assert "PULUMI_PYTHON_CMD" not in variables

    def test_as_data(self) -> None:
        data = self.toolchain(*[BUILT] * 4).as_data()
        assert json.loads(json.dumps(data))["parts"][3] == {
            "name": "command-provider",
            "version": "1",
            "origin": BUILT,
            "path": "/p/command-provider",
        }


def test_an_unknown_platform_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ToolchainError, match="Linux or macOS"):
        Platform.of_this_machine()


def test_the_cache_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GB10_SERVING_CACHE", str(tmp_path))
    surroundings = Surroundings.of_this_machine()
    assert surroundings.own_home == tmp_path / "pulumi-home"
    assert (surroundings.sources / "pulumi" / "go.mod").is_file()


def test_real_go_builds_a_module(tmp_path: Path) -> None:
    """One build with the real compiler, of a program that needs nothing."""
    folder = tmp_path / "engine" / "command-provider"
    folder.mkdir(parents=True)
    shutil.copytree(folder, tmp_path / "engine" / "pulumi")
    for name in ("pulumi", "command-provider"):
        (tmp_path / "engine" / name / "go.mod").write_text(f"module {name}\n\ngo 1.21\n")
    (folder / "main.go").write_text("package main\n\nvar version string\n\nfunc main() { println(version) }\n")
    surroundings = Surroundings(sources=tmp_path / "engine", cache=tmp_path / "cache")
    program = Builder(surroundings, print).build(COMMAND_PROVIDER) / COMMAND_PROVIDER.binary
    assert os.popen(f"{program} 2>&1").read().strip() == "1.2.1"
