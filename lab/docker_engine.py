"""The Docker engine of the virtual nodes: one that answers is used as it is, otherwise one of our own is started."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lab import places
from lab.commands import Report, run, succeeds
from lab.errors import LabError
from lab.locks import exclusive, shared, try_exclusive
from lab.packages import install, missing
from lab.private_engine import PrivateEngine

FABRIC_LABEL = "gb10-serving.fabric"

_DEFAULT_HOST = "unix:///var/run/docker.sock"
_CHANGE_PATIENCE_SECONDS = 300


@dataclass(frozen=True)
class DockerEngine:
    """A Docker engine of this machine.

    Attributes:
        host: its socket, as the Docker client takes it.
    """

    host: str

    @property
    def answers(self) -> bool:
        """Whether the engine answers."""
        return succeeds(["docker", "--host", self.host, "version"])

    def docker(self, *arguments: str, what: str, input_bytes: bytes | None = None, timeout_seconds: float = 300) -> str:
        """Runs the Docker client against this engine and returns its output.

        Raises:
            LabError: the client failed.
        """
        return run(
            ["docker", "--host", self.host, *arguments],
            what=what,
            way_out="`./fleet lab down` and `./fleet lab up` make everything anew.",
            input_bytes=input_bytes,
            timeout_seconds=timeout_seconds,
        )

    def has_image(self, reference: str) -> bool:
        """Tells whether the engine has an image of that tag."""
        return succeeds(["docker", "--host", self.host, "image", "inspect", reference])

    def output_of(self, container: str) -> str:
        """Returns the last lines that a container printed."""
        lines = 'docker --host "$0" logs --tail 12 "$1" 2>&1'
        return run(["sh", "-c", lines, self.host, container], what=f"read the output of {container}")

    def labelled(self, kind: str, fabric: str | None = None) -> list[str]:
        """Returns the ids of containers, networks or volumes of a fabric, or of all fabrics.

        Args:
            kind: "container", "network" or "volume".
            fabric: the fabric's name; all fabrics if absent.
        """
        label = FABRIC_LABEL if fabric is None else f"{FABRIC_LABEL}={fabric}"
        all_states = ["--all"] if kind == "container" else []
        command = [kind, "ls", "--quiet", *all_states, "--filter", f"label={label}"]
        return self.docker(*command, what=f"list the {kind}s of fabric {fabric or 'any'}").split()


def private_engine() -> PrivateEngine:
    """Returns this machine's engine for virtual nodes, running or not."""
    return PrivateEngine(places.ENGINE_RUN_FOLDER, places.ENGINE_DATA_FOLDER)


def docker_architecture() -> str:
    """Returns this machine's architecture as images name it."""
    names = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
    machine = platform.machine()
    if machine not in names:
        raise LabError("make an image", f"unknown architecture {machine}", "Use an x86_64 or aarch64 machine.")
    return names[machine]


def _foreign_engine() -> DockerEngine | None:
    """An engine that others run on this machine; with one elsewhere the nodes' networks could not be reached."""
    for host in (os.environ.get("DOCKER_HOST", ""), _DEFAULT_HOST):
        engine = DockerEngine(host)
        if host.startswith("unix://") and engine.answers:
            return engine
    return None


def _install_engine(report: Report) -> None:
    if missing(["dockerd", "containerd", "runc"]):
        install(["docker.io"], "the Docker engine of the virtual nodes", report)
    if missing(["docker"]):
        install(["docker-cli"], "the Docker client", report)


def _require_root() -> None:
    if os.geteuid() != 0:
        raise LabError(
            "find a Docker engine",
            f"neither DOCKER_HOST nor {_DEFAULT_HOST} answers, and starting an engine needs root",
            "Start Docker (or join the group docker), or run this command as root.",
        )


def _start_private(report: Report) -> DockerEngine:
    _require_root()
    _install_engine(report)
    engine = private_engine()
    engine.start(report)
    return DockerEngine(engine.host)


def _ready(report: Report) -> DockerEngine:
    """Our own engine wins once it has been started: the fabrics that are up live there, even if it was killed."""
    if private_engine().was_started:
        return _start_private(report)
    return _foreign_engine() or _start_private(report)


@contextmanager
def engine_in_use(report: Report) -> Iterator[DockerEngine]:
    """Gives a Docker engine, installed and started if need be, that nobody stops meanwhile.

    Raises:
        LabError: there is none and none can be made.
    """
    with shared(places.lock_folder() / "engine-in-use"):
        with exclusive(places.lock_folder() / "engine-change", "start a Docker engine", _CHANGE_PATIENCE_SECONDS):
            engine = _ready(report)
        yield engine


def existing_engine() -> DockerEngine | None:
    """Returns the engine that the fabrics are on, if there are any; one of our own may have been killed meanwhile."""
    private = private_engine()
    return DockerEngine(private.host) if private.was_started else _foreign_engine()


def stop_unused_engine(report: Report) -> None:
    """Ends our own engine if it was started and no fabric is on it or about to come up; no other engine is touched."""
    private = private_engine()
    with try_exclusive(places.lock_folder() / "engine-in-use") as nobody_else:
        if not nobody_else or not private.was_started:
            return
        engine = DockerEngine(private.host)
        if engine.answers and (engine.labelled("container") or engine.labelled("network")):
            return
        report("stop the Docker engine of the virtual nodes")
        private.stop()
