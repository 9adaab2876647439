"""The process that runs on a node as long as a transfer does: takes commands, forks the streams, tells what happens.

Commands come as lines of JSON on standard input, events go as lines of JSON to standard output. An empty line says that
the controller is still there. When it has said nothing for SILENT_CONTROLLER_SECONDS, or is gone, the process ends;
what has arrived stays and the next transfer goes on from there.
"""

import json
import multiprocessing
import os
import selectors
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime.common.file_hashes import sha256_of
from runtime.transfer.errors import TransferError
from runtime.transfer.feed import Feed
from runtime.transfer.inspection import Found, look
from runtime.transfer.intake import Intake
from runtime.transfer.state import FolderState, WantedFile
from runtime.transfer.workers import Crew, Meeting, Neighbour, Work, connected_children, wait_for_parent

SILENT_CONTROLLER_SECONDS = 60
_TICK_SECONDS = 0.5
_LOCK_POLL_SECONDS = 0.2
_BACKLOG = 64


class ControllerGone(Exception):  # noqa: N818 - it is how a transfer is ended, not an error
    """Raised when the controller has closed the session or fell silent."""


class Session:
    """The line to the controller."""

    def __init__(self) -> None:
        self._selector = selectors.PollSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._rest = b""
        self._commands: list[dict[str, Any]] = []
        self._heard = time.monotonic()

    def request(self) -> dict[str, Any]:
        """Waits for the first line."""
        while not self._commands:
            self.wait(None)
        return self._commands.pop(0)

    def tell(self, event: str, **details: object) -> None:
        """Sends an event.

        Raises:
            ControllerGone: nobody listens.
        """
        try:
            sys.stdout.write(json.dumps({"event": event, **details}) + "\n")
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise ControllerGone from error

    def wait(self, crew: Crew | None, seconds: float = _TICK_SECONDS) -> list[int]:
        """Waits for a command or a report, at most so long. Returns the processes of the crew that have something."""
        wanted = {descriptor: process for process, descriptor in crew.pipes.items()} if crew else {}
        for descriptor in wanted:
            self._selector.register(descriptor, selectors.EVENT_READ)
        try:
            ready = {key.fd for key, _ in self._selector.select(0 if self._commands else seconds)}
        finally:
            for descriptor in wanted:
                self._selector.unregister(descriptor)
        if 0 in ready:
            self._read()
        if time.monotonic() - self._heard > SILENT_CONTROLLER_SECONDS:
            raise ControllerGone
        return [process for descriptor, process in wanted.items() if descriptor in ready]

    def command(self) -> dict[str, Any] | None:
        """Returns the next command that has come, if any."""
        return self._commands.pop(0) if self._commands else None

    def still_there(self) -> None:
        """Makes sure that the controller is there and has not said `stop`, amid long work.

        Raises:
            ControllerGone: it is gone.
        """
        self.wait(None, 0)

    def _read(self) -> None:
        content = os.read(0, 1 << 20)
        if not content:
            raise ControllerGone
        self._heard = time.monotonic()
        *lines, self._rest = (self._rest + content).split(b"\n")
        self._commands += [json.loads(line) for line in lines if line]


Commands = dict[str, Callable[[dict[str, Any]], None]]


class _Agent(ABC):
    """A node's part of a transfer, as long as the controller wants it."""

    def __init__(self, session: Session, request: dict[str, Any]) -> None:
        self._session = session
        self._request = request
        self._secret = bytes.fromhex(request.pop("secret"))
        self._files = _files(request)

    def run(self) -> None:
        """Works off commands until the controller ends the session."""
        self._begin()
        # A round may have ended by itself when `stop` comes.
        commands: Commands = {"round": self._run_round, "stop": lambda _: None, **self._commands()}
        while True:
            command = self._session.command()
            if command is None:
                self._session.wait(None)
            else:
                commands[command["do"]](command)

    @abstractmethod
    def _begin(self) -> None:
        """Tells the controller what this node has."""

    @abstractmethod
    def _commands(self) -> Commands:
        """Returns what is done on each command that only this part knows."""

    @abstractmethod
    def _streaming(self, meeting: Meeting, command: dict[str, Any]) -> Work:
        """Returns what each stream of a round does."""

    def _run_round(self, command: dict[str, Any]) -> None:
        """Starts the streams of a round and tells of it until they have ended or the controller stops them."""
        meeting = self._meeting(command)
        crew = Crew(command["streams"])
        try:
            work = self._streaming(meeting, command)
            for number in range(command["streams"]):
                crew.start(number, work)
            self._attend(crew, meeting.round_number)
            moved, seconds = crew.counters.read()
            self._session.tell("round-ended", round=meeting.round_number, bytes=moved, seconds=seconds)
        finally:
            crew.close()

    def _meeting(self, command: dict[str, Any]) -> Meeting:
        return Meeting(
            self._secret,
            command["round"],
            self._request["node"],
            self._request["address"],
            self._request["silence_seconds"],
            tuple(Neighbour(**child) for child in command["children"]),
            command["probe_seconds"] > 0,
        )

    def _attend(self, crew: Crew, round_number: int) -> None:
        """Passes on what the crew reports until it has ended or is stopped."""
        told = time.monotonic()
        while crew.pipes:
            for process in self._session.wait(crew):
                for report in crew.take(process):
                    self._session.tell(**{"event": "report", "round": round_number, **report})
            asked = self._session.command()
            if asked is not None and asked["do"] == "stop":
                crew.stop()
            if time.monotonic() - told >= 1:
                told = time.monotonic()
                self._session.tell("progress", bytes=crew.counters.read()[0])


class ReceivingAgent(_Agent):
    """A receiver: knows its folder, listens on its fabric address and takes part in rounds."""

    def __init__(self, session: Session, request: dict[str, Any]) -> None:
        super().__init__(session, request)
        self._state = FolderState(Path(request["folder"]))
        self._listener: socket.socket | None = None
        self._found: Found | None = None

    def _begin(self) -> None:
        if self._state.try_lock():
            self._look()
        else:
            self._session.tell("busy")

    def _commands(self) -> Commands:
        return {
            "lock": lambda _: self._lock(),
            "unlock": lambda _: self._state.unlock(),
            "look": lambda _: self._look(),
        }

    def _lock(self) -> None:
        while not self._state.try_lock():
            self._session.wait(None, _LOCK_POLL_SECONDS)
        self._look()

    def _look(self) -> None:
        found = look(self._state, self._files, False, True, self._session.still_there)
        self._found = found
        self._state.remove_other_parts([self._files[index] for index in found.missing])
        free_bytes = self._state.free_bytes()
        if found.on_disk_bytes > free_bytes:
            raise TransferError(
                f"{self._state.folder} needs {found.on_disk_bytes} more bytes and its disk has {free_bytes} free: free "
                f"{found.on_disk_bytes - free_bytes} bytes there"
            )
        if found.missing:
            self._listen()
        else:
            self._state.compact()
        self._session.tell(
            "looked",
            **_described(found),
            port=self._listener.getsockname()[1] if self._listener else 0,
            cores=len(os.sched_getaffinity(0)),
        )

    def _listen(self) -> None:
        if self._listener is None:
            try:
                self._listener = socket.create_server((self._request["address"], 0), backlog=_BACKLOG)
            except OSError as error:
                raise TransferError(
                    f"cannot listen on {self._request['address']} ({error.strerror}): is it this node's fabric address?"
                ) from error

    def _streaming(self, meeting: Meeting, command: dict[str, Any]) -> Work:
        listener, found, parent = self._listener, self._found, Neighbour(**command["parent"])
        assert listener is not None
        assert found is not None

        def work(count: Callable[[int], None], report: Callable[..., None]) -> None:
            connection = wait_for_parent(listener, meeting, parent, report)
            with connected_children(meeting, report) as outlets:
                Intake(self._state, self._files, found.missing, outlets, count, report).run(connection)

        return work


class SendingAgent(_Agent):
    """The source: checks that it has the files and feeds rounds."""

    def __init__(self, session: Session, request: dict[str, Any]) -> None:
        super().__init__(session, request)
        self._folder = Path(request["folder"])

    def _begin(self) -> None:
        for file in self._files:
            self._check(file)
        self._session.tell("ready", cores=len(os.sched_getaffinity(0)))

    def _commands(self) -> Commands:
        return {"hash": lambda command: self._hash(command["index"])}

    def _check(self, file: WantedFile) -> None:
        path = f"{self._folder}/{file.path}"
        try:
            found = os.stat(path).st_size  # noqa: PTH116 - as in stamp_of
        except OSError as error:
            raise TransferError(f"{path} cannot be read ({error.strerror}), and the manifest names it") from error
        if found != file.size_bytes:
            raise TransferError(
                f"{path} has {found} bytes, the manifest says {file.size_bytes}: it was changed since, make "
                "a new manifest"
            )

    def _hash(self, index: int) -> None:
        try:
            found = sha256_of(Path(f"{self._folder}/{self._files[index].path}"))
        except OSError as error:
            found = error.strerror or str(error)
        self._session.tell("hashed", index=index, sha256=found)

    def _streaming(self, meeting: Meeting, command: dict[str, Any]) -> Work:
        next_job = _shared_queue([(index, offset) for index, offset in command["files"]])
        probe_seconds = command["probe_seconds"]

        def work(count: Callable[[int], None], report: Callable[..., None]) -> None:
            with connected_children(meeting, report) as outlets:
                feed = Feed(self._folder, self._files, outlets, count, report)
                if probe_seconds:
                    feed.send_probe(probe_seconds, command["probe_bytes"])
                else:
                    feed.send_files(next_job)

        return work


def _shared_queue(jobs: list[tuple[int, int]]) -> Callable[[], tuple[int, int] | None]:
    """Returns what gives each job to one of the processes that are forked afterwards."""
    position = multiprocessing.get_context("fork").Value("Q", 0)

    def next_job() -> tuple[int, int] | None:
        with position.get_lock():
            number = position.value
            position.value += 1
        return jobs[number] if number < len(jobs) else None

    return next_job


def inspect(session: Session, request: dict[str, Any]) -> None:
    """Tells once what a folder holds; changes nothing but the record of what was verified."""
    found = look(FolderState(Path(request["folder"])), _files(request), request["deep"], False, session.still_there)
    session.tell("looked", **_described(found))


def _files(request: dict[str, Any]) -> list[WantedFile]:
    return [WantedFile(*entry) for entry in request["files"]]


def _described(found: Found) -> dict[str, Any]:
    return {
        "missing": [[index, beginning.size_bytes] for index, beginning in found.missing.items()],
        "present_bytes": found.present_bytes,
        "missing_bytes": found.missing_bytes,
    }
