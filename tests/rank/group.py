"""A group of real supervisors on this machine's loopback address, each the first process of its own namespace."""

import contextlib
import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.rank.exchange import ExchangeError, ask_status

RUNTIME = Path(__file__).parents[2] / "runtime" / "rank" / "__main__.py"
CHILD = Path(__file__).parent / "cheap_child.py"
PATIENCE = {
    "fabric": 5.0,
    "memory": 10.0,
    "gather": 60.0,
    "start": 60.0,
    "stop": 3.0,
    "silence_while_starting": 8.0,
    "silence_while_serving": 4.0,
}


def free_ports(count: int) -> list[int]:
    """Returns ports that nothing listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [found.getsockname()[1] for found in sockets]
    for found in sockets:
        found.close()
    return ports


def rank_request(folder: Path, rank: int, ports: Sequence[int], http_port: int, meet_port: int) -> dict[str, Any]:
    """Returns the request of one rank of a loopback group, in plain data."""
    own = folder / f"rank{rank}"
    child = {
        "rank": rank,
        "ranks": len(ports),
        "folder": str(folder),
        "record": str(own / "record"),
        "meet_port": meet_port,
        "http_port": http_port,
    }
    return {
        "stack": "test",
        "group": "main",
        "generation": "a" * 64,
        "rank": rank,
        "peers": [
            {"rank": number, "node": f"node-{number}", "address": "127.0.0.1", "port": port}
            for number, port in enumerate(ports)
        ],
        "argv": [sys.executable, str(CHILD), json.dumps(child)],
        "before": [],
        "awaited_accelerators": 0,
        "shared_arguments": "b" * 64,
        "environment": {},
        "fabric": {"kind": "virtual", "rails": [{"address": "127.0.0.1", "interface": "lo", "hca": None}]},
        "sysfs_folder": "/sys",
        "serves": True,
        "http_port": http_port,
        "required_bytes": 1 << 20,
        "accelerator_memory": False,
        "guard": {"floor_percent": 0.5, "backstop_percent": 0.5},
        "page_cache": {"release": "never", "threshold_bytes": 0, "interval_seconds": 60, "folders": []},
        "patience": dict(PATIENCE),
        "restarts": {"most": 3, "window_seconds": 1800},
        "limits": {"open_files": 64, "locked_memory_bytes": 1, "shared_memory_bytes": 1},
        "record_folder": str(own / "record"),
        "secrets_folder": str(own / "secrets"),
    }


@dataclass
class LoopbackRank:
    """One supervisor, and what Docker would do for it."""

    request: dict[str, Any]
    log: Path
    restarts: bool = True
    environment: dict[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None
    codes: list[int] = field(default_factory=list)
    _stopped: bool = False
    _keeper: threading.Thread | None = None

    def start(self) -> None:
        """Starts the container and keeps it running, as the policy `unless-stopped` does."""
        self._stopped = False
        self._launch()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()

    def stop(self) -> int:
        """Asks the first process to end, kills it when that takes long, and returns its exit code: `docker stop`."""
        self._stopped = True
        self.signal(signal.SIGTERM)
        assert self.process
        try:
            return self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def kill(self) -> None:
        """Kills the first process; the kernel then kills all others of the namespace."""
        self.signal(signal.SIGKILL)

    def kill_child(self) -> bool:
        """Kills the engine."""
        status = self.shown()
        process = status.get("engine", {}).get("process")
        first = self.first_process()
        if not process or first is None:
            return False
        for outer in _children(first):
            try:
                os.kill(outer, signal.SIGKILL)
            except ProcessLookupError:
                return False
            return True
        return False

    def first_process(self) -> int | None:
        """Returns the id of the supervisor as this machine numbers it."""
        return next(iter(_children(self.process.pid)), None) if self.process else None

    def signal(self, number: int) -> None:
        first = self.first_process()
        if first is not None:
            os.kill(first, number)

    def freeze(self, stopped: bool) -> None:
        """Stops or continues all processes of the rank, as a node does that hangs."""
        first = self.first_process()
        if first is None:
            return
        for process in [first, *_below(first)]:
            os.kill(process, signal.SIGSTOP if stopped else signal.SIGCONT)

    def status(self) -> dict[str, Any] | None:
        """Asks the supervisor, none while it does not answer."""
        own = self.request["peers"][self.request["rank"]]
        try:
            return ask_status(self.key, own["address"], own["port"], None, 1.0)
        except ExchangeError:
            return None

    def shown(self) -> dict[str, Any]:
        """Returns the status that was left for the node."""
        try:
            return json.loads((Path(self.request["record_folder"]) / "status.json").read_text())
        except (FileNotFoundError, ValueError):
            return {}

    @property
    def key(self) -> bytes:
        return (Path(self.request["secrets_folder"]) / "group-key").read_bytes()

    def words(self) -> str:
        return self.log.read_text(errors="replace")

    def _launch(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *("unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL"),
                    *(sys.executable, "-E", "-s", "-B", str(RUNTIME), json.dumps(self.request)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )

    def _keep(self) -> None:
        while True:
            assert self.process
            self.codes.append(self.process.wait())
            if self._stopped or not self.restarts:
                return
            time.sleep(0.1)
            self._launch()


class LoopbackGroup:
    """All ranks of one group."""

    def __init__(self, folder: Path, ranks: int, change: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.folder = folder
        (folder / "alive").mkdir(parents=True)
        (folder / "log").touch()
        ports = free_ports(ranks + 2)
        key = secrets.token_hex(32)
        self.ranks = []
        for rank in range(ranks):
            request = rank_request(folder, rank, ports[:ranks], ports[ranks], ports[ranks + 1])
            if change:
                change(request)
            for name in ("record", "secrets"):
                (folder / f"rank{rank}" / name).mkdir(parents=True)
            (folder / f"rank{rank}" / "secrets" / "group-key").write_text(key)
            self.ranks.append(LoopbackRank(request, folder / f"rank{rank}" / "words"))

    def start(self) -> None:
        for rank in self.ranks:
            rank.start()

    def end(self) -> None:
        """Ends everything, whatever state it is in."""
        for rank in self.ranks:
            rank._stopped = True
            if rank.process:
                rank.freeze(stopped=False)
                rank.process.kill()
        for rank in self.ranks:
            if rank.process:
                rank.process.wait()

    def states(self) -> list[str]:
        return [(rank.status() or {"state": "silent"})["state"] for rank in self.ranks]

    def wait_for(self, *states: str, seconds: float = 40) -> None:
        """Waits until every rank is in its state; one state is for all."""
        wanted = list(states) * len(self.ranks) if len(states) == 1 else list(states)
        end = time.monotonic() + seconds
        while (found := self.states()) != wanted:
            assert time.monotonic() < end, f"{found} instead of {wanted}\n{self.words()}"
            time.sleep(0.1)

    def words(self) -> str:
        """Returns what all ranks have said."""
        return "\n".join(f"--- rank {number}\n{rank.words()}" for number, rank in enumerate(self.ranks))

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]

    def alive(self) -> set[tuple[int, str]]:
        """Returns rank and view of every child that lives."""
        names = [path.name.split(" ") for path in list((self.folder / "alive").iterdir()) if _is_locked(path)]
        return {(int(rank), view) for rank, view in names}


def _is_locked(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError), path.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _children(process: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def _below(process: int) -> list[int]:
    return [found for child in _children(process) for found in (child, *_below(child))]
