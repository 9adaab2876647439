"""What tests of transfers share: folders to move, nodes that are processes on loopback, and wires that misbehave."""

import contextlib
import hashlib
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ops.transfers import Receiver, TransferFile
from spec.party import Party

LOOPBACK = "127.0.0.1"


def local_party(node: str, folder: Path) -> Party:
    """Returns a node that is a process of this machine."""
    return Party(node=node, connection=None, storage_folder=str(folder), address=LOOPBACK, switch="loopback")


@dataclass
class Scene:
    """A source folder, what it holds, and receivers that are processes of this machine."""

    folder: Path
    files: list[TransferFile] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @property
    def source(self) -> Party:
        return local_party("source", self.folder)

    @property
    def source_folder(self) -> Path:
        return self.folder / "source"

    def add(self, path: str, content: bytes) -> TransferFile:
        """Adds a file to the source."""
        target = self.source_folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        self.files.append(TransferFile(path, len(content), hashlib.sha256(content).hexdigest()))
        return self.files[-1]

    def receivers(self, count: int) -> list[Receiver]:
        """Returns so many receivers: node-1, node-2, ..."""
        return [
            Receiver(local_party(f"node-{number}", self.folder), str(self.folder / f"node-{number}" / "model"))
            for number in range(1, count + 1)
        ]

    def assert_nothing_wrong(self, receivers: Sequence[Receiver]) -> None:
        """Every file that is there under its name is right, whatever happened."""
        for receiver in receivers:
            for file in self.files:
                path = Path(receiver.folder) / file.path
                if path.exists():
                    assert hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256, path

    def assert_complete(self, receivers: Sequence[Receiver]) -> None:
        """Every file is there and right, and no beginning is left."""
        self.assert_nothing_wrong(receivers)
        for receiver in receivers:
            folder = Path(receiver.folder)
            assert {file.path for file in self.files} <= {
                path.relative_to(folder).as_posix() for path in folder.rglob("*")
            }
            assert list((folder.parent / f".{folder.name}.transfer" / "parts").iterdir()) == []


def processes_of(receiver: Receiver) -> list[int]:
    """Returns the processes that hold the receiver's folder, the one that commands the others first."""
    folder = Path(receiver.folder)
    lock = str(folder.parent / f".{folder.name}.transfer" / "lock")
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(str(descriptor.readlink()) == lock for descriptor in (process / "fd").iterdir()):
                found.append(int(process.name))
    return sorted(found)


def sending_processes() -> list[int]:
    """Returns the processes that send for this test."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if words[-3:-1] == [b"runtime.transfer", b"send"] and _is_below(int(process.name), os.getpid()):
                found.append(int(process.name))
    return sorted(found)


def _is_below(process: int, ancestor: int) -> bool:
    while process > 1:
        if process == ancestor:
            return True
        process = int(Path(f"/proc/{process}/stat").read_text().rsplit(") ", 1)[1].split()[1])
    return False


def kill_some(processes: Callable[[], list[int]], chance: random.Random, delay_seconds: float) -> None:
    """Kills, after the first of them was seen and a delay, the first, all or one of the processes."""
    end = time.monotonic() + 5
    while not processes() and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(delay_seconds)
    found = processes()
    victims = chance.choice([found[:1], found, [chance.choice(found)] if found else []])
    for victim in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)


class Wire:
    """Stands between a parent and a child, and harms what the parent sends.

    Args:
        port: where the child listens.
        flip_at: positions, in the bytes from the parent, of bytes to invert; each once.
        always: whether every connection is harmed; otherwise only the first that comes so far.
        hold_after: bytes after which nothing passes until `released` is set.
    """

    def __init__(
        self, port: int, flip_at: int | None = None, always: bool = False, hold_after: int | None = None
    ) -> None:
        self._child = port
        self._flip_at = flip_at
        self._always = always
        self._hold_after = hold_after
        self._harmed = False
        self.released = threading.Event()
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        self.released.set()
        self._listener.close()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                parent, _ = self._listener.accept()
                child = socket.create_connection((LOOPBACK, self._child))
                threading.Thread(target=self._pass, args=(parent, child, True), daemon=True).start()
                threading.Thread(target=self._pass, args=(child, parent, False), daemon=True).start()

    def _pass(self, start: socket.socket, end: socket.socket, is_down: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while content := start.recv(1 << 16):
                if is_down:
                    content = self._harm(content, passed)
                end.sendall(content)
                passed += len(content)
        for connection in (start, end):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _harm(self, content: bytes, passed: int) -> bytes:
        if self._hold_after is not None and passed >= self._hold_after:
            self.released.wait()
        place = None if self._flip_at is None else self._flip_at - passed
        if place is None or not 0 <= place < len(content) or (self._harmed and not self._always):
            return content
        self._harmed = True
        return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]
