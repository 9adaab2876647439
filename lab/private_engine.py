"""A Docker engine of our own, beside whatever else runs on this machine: own socket, data, containerd and settings."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab import control_groups, processes
from lab.commands import Report, succeeds, tail
from lab.errors import LabError
from lab.mounts import unmount_below

_START_PATIENCE_SECONDS = 60
_STOP_PATIENCE_SECONDS = 30
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class PrivateEngine:
    """The two processes of an engine, and where they keep what they have.

    Attributes:
        run_folder: sockets, records and settings; its existence says that the engine was started and not stopped.
        data_folder: images and containers; it outlives the engine as a cache.
    """

    run_folder: Path
    data_folder: Path

    @property
    def host(self) -> str:
        """The address for a Docker client."""
        return f"unix://{self.run_folder / 'docker.sock'}"

    @property
    def was_started(self) -> bool:
        """Whether it was started and not stopped since; it may have been killed meanwhile."""
        return self.run_folder.exists()

    @property
    def answers(self) -> bool:
        """Whether the engine answers."""
        return self._recorded("dockerd") and succeeds(["docker", "--host", self.host, "version"])

    def start(self, report: Report) -> None:
        """Starts the engine unless it answers; whatever a killed run left behind is taken into account.

        Raises:
            LabError: it does not come up.
        """
        if self.answers:
            return
        report("start a Docker engine for the virtual nodes")
        self._end_processes()
        self._prepare_folders(report)
        self._start_containerd()
        self._start_dockerd()

    def stop(self) -> None:
        """Ends the engine and takes away its mounts and sockets; images stay cached."""
        self._end_processes()
        unmount_below(self.run_folder)
        unmount_below(self.data_folder)
        if self._control_groups_mark.exists():
            control_groups.unmount()
        shutil.rmtree(self.run_folder)

    @property
    def _control_groups_mark(self) -> Path:
        return self.run_folder / "control-groups-are-ours"

    def _record(self, name: str) -> Path:
        return self.run_folder / f"{name}.process"

    def _log(self, name: str) -> Path:
        return self.data_folder / f"{name}.log"

    def _recorded(self, name: str) -> bool:
        return processes.recorded_alive(self._record(name)) is not None

    def _end_processes(self) -> None:
        for name in ("dockerd", "containerd"):
            processes.end(self._record(name), _STOP_PATIENCE_SECONDS)

    def _prepare_folders(self, report: Report) -> None:
        self.run_folder.mkdir(parents=True, exist_ok=True)
        self.data_folder.mkdir(parents=True, exist_ok=True)
        for stale in ("docker.sock", "docker.pid", "containerd.sock", "containerd.sock.ttrpc"):
            (self.run_folder / stale).unlink(missing_ok=True)
        if control_groups.mount_if_absent(report):
            self._control_groups_mark.touch()

    def _start_containerd(self) -> None:
        settings = self.run_folder / "containerd.toml"
        settings.write_text(self._containerd_settings())
        processes.start(["containerd", "--config", str(settings)], self._record("containerd"), self._log("containerd"))
        self._wait("containerd", (self.run_folder / "containerd.sock").is_socket)

    def _start_dockerd(self) -> None:
        settings = self.run_folder / "dockerd.json"
        settings.write_text(json.dumps(self._dockerd_settings(), indent=2))
        processes.start(["dockerd", "--config-file", str(settings)], self._record("dockerd"), self._log("dockerd"))
        self._wait("dockerd", lambda: self.answers)

    def _containerd_settings(self) -> str:
        # A string in JSON is one in TOML too.
        return "\n".join(
            [
                "version = 2",
                f"root = {json.dumps(str(self.data_folder / 'containerd'))}",
                f"state = {json.dumps(str(self.run_folder / 'containerd'))}",
                'disabled_plugins = ["io.containerd.grpc.v1.cri"]',
                "[grpc]",
                f"address = {json.dumps(str(self.run_folder / 'containerd.sock'))}",
                "",
            ]
        )

    def _dockerd_settings(self) -> dict[str, object]:
        """Nothing of the host's network is touched: no rules, no forwarding, no default bridge."""
        return {
            "hosts": [self.host],
            "data-root": str(self.data_folder / "docker"),
            "exec-root": str(self.run_folder / "docker"),
            "pidfile": str(self.run_folder / "docker.pid"),
            "containerd": str(self.run_folder / "containerd.sock"),
            "bridge": "none",
            "iptables": False,
            "ip6tables": False,
            "ip-forward": False,
            "ip-masq": False,
            "userland-proxy": False,
        }

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + _START_PATIENCE_SECONDS
        while not ready():
            if not self._recorded(name) or time.monotonic() >= end:
                log = self._log(name)
                raise LabError(
                    f"start {name}",
                    f"it does not answer; the end of {log}:\n{tail(log.read_text(errors='replace'))}",
                    "Mend what it says, or start a Docker engine of your own: it is used where it answers.",
                )
            time.sleep(_POLL_SECONDS)
