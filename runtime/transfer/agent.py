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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime.common.file_hashes import sha256_of
from runtime.transfer.errors import TransferError
from runtime.transfer.feed import Feed
from runtime.transfer.inspection import Found, look
from runtime.transfer.intake import Intake
from runtime.transfer.state import FolderState, WantedFile
from runtime.transfer.workers import Crew, Meeting, Neighbour, connect_children, wait_for_parent

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


Streams = Callable[[Crew, Meeting, dict[str, Any]], None]


def run_round(
    session: Session, secret: bytes, request: dict[str, Any], command: dict[str, Any], start: Streams
) -> None:
    """Starts the streams of a round and tells of it until they have ended or the controller stops them."""
    meeting = Meeting(
        secret,
        command["round"],
        request["node"],
        request["address"],
        request["silence_seconds"],
        tuple(Neighbour(**child) for child in command["children"]),
        command["probe_seconds"] > 0,
    )
    crew = Crew(command["streams"])
    try:
        start(crew, meeting, command)
        told = time.monotonic()
        while crew.pipes:
            for process in session.wait(crew):
                for report in crew.take(process):
                    session.tell(**{"event": "report", "round": meeting.round_number, **report})
            asked = session.command()
            if asked is not None and asked["do"] == "stop":
                crew.stop()
            if time.monotonic() - told >= 1:
                told = time.monotonic()
                session.tell("progress", bytes=crew.counters.read()[0])
        moved, seconds = crew.counters.read()
        session.tell("round-ended", round=meeting.round_number, bytes=moved, seconds=seconds)
    finally:
        crew.close()


def _files(request: dict[str, Any]) -> list[WantedFile]:
    return [WantedFile(*entry) for entry in request["files"]]


class ReceivingAgent:
    """A receiver: knows its folder, listens on its fabric address and takes part in rounds."""

    def __init__(self, session: Session, request: dict[str, Any]) -> None:
        self._session = session
        self._request = request
        self._secret = bytes.fromhex(request.pop("secret"))
        self._files = _files(request)
        self._state = FolderState(Path(request["folder"]))
        self._listener: socket.socket | None = None
        self._found: Found | None = None

    def run(self) -> None:
        """Works off commands until the controller ends the session."""
        if self._state.try_lock():
            self._look()
        else:
            self._session.tell("busy")
        work = {"lock": self._lock, "unlock": self._unlock, "look": self._look, "stop": lambda: None}
        while True:
            command = self._session.command()
            if command is None:
                self._session.wait(None)
            elif command["do"] == "round":
                run_round(self._session, self._secret, self._request, command, self._start)
            else:
                work[command["do"]]()

    def _lock(self) -> None:
        while not self._state.try_lock():
            self._session.wait(None, _LOCK_POLL_SECONDS)
        self._look()

    def _unlock(self) -> None:
        self._state.unlock()

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
            missing=[[index, beginning.size_bytes] for index, beginning in found.missing.items()],
            present_bytes=found.present_bytes,
            missing_bytes=found.missing_bytes,
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

    def _start(self, crew: Crew, meeting: Meeting, command: dict[str, Any]) -> None:
        listener, found, parent = self._listener, self._found, Neighbour(**command["parent"])
        assert listener is not None
        assert found is not None

        def work(count: Callable[[int], None], report: Callable[..., None]) -> None:
            connection = wait_for_parent(listener, meeting, parent, report)
            outlets = connect_children(meeting, report)
            intake = Intake(self._state, self._files, found.missing, outlets, count, report)
            try:
                intake.run(connection)
            finally:
                for outlet in outlets:
                    outlet.finish()

        for number in range(command["streams"]):
            crew.start(number, work)


class SendingAgent:
    """The source: checks that it has the files and feeds rounds."""

    def __init__(self, session: Session, request: dict[str, Any]) -> None:
        self._session = session
        self._request = request
        self._secret = bytes.fromhex(request.pop("secret"))
        self._files = _files(request)
        self._folder = Path(request["folder"])

    def run(self) -> None:
        """Works off commands until the controller ends the session."""
        for file in self._files:
            self._check(file)
        self._session.tell("ready", cores=len(os.sched_getaffinity(0)))
        while True:
            command = self._session.command()
            if command is None:
                self._session.wait(None)
            elif command["do"] == "round":
                run_round(self._session, self._secret, self._request, command, self._start)
            elif command["do"] == "hash":
                self._hash(command["index"])

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

    def _start(self, crew: Crew, meeting: Meeting, command: dict[str, Any]) -> None:
        next_job = _shared_queue([(index, offset) for index, offset in command["files"]])
        probe_seconds = command["probe_seconds"]

        def work(count: Callable[[int], None], report: Callable[..., None]) -> None:
            outlets = connect_children(meeting, report)
            feed = Feed(self._folder, self._files, outlets, count, report)
            try:
                if probe_seconds:
                    feed.send_probe(probe_seconds, command["probe_bytes"])
                else:
                    feed.send_files(next_job)
            finally:
                for outlet in outlets:
                    outlet.finish()

        for number in range(command["streams"]):
            crew.start(number, work)


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
    state, files = FolderState(Path(request["folder"])), _files(request)
    found = look(state, files, request["deep"], False, session.still_there)
    session.tell(
        "looked",
        missing=[[index, beginning.size_bytes] for index, beginning in found.missing.items()],
        present_bytes=found.present_bytes,
        missing_bytes=found.missing_bytes,
    )
