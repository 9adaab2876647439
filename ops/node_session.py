"""A verb of runtime/ that runs for long on a node, or on this controller: commands go in, events come out."""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO, Any, cast

from ops.places import PROJECT
from ops.remote import NodeError, explain, install_runtime, runtime_is_absent, session_command
from spec.connection import Connection

Deliver = Callable[["NodeSession", dict[str, Any]], None]
_ENDED = "ended"


class NodeSession:
    """One running verb.

    Its events are delivered from a thread; the last one is `ended` with the `reason`, none if it ended well.

    Args:
        node: its name, for messages.
        connection: how to log in; none runs the verb on this controller.
        storage_folder: our folder on the node.
        module: of runtime/, such as `runtime.transfer`.
        verb: of the module.
        request: its first line of standard input.
        deliver: called with this session and each event.
    """

    def __init__(
        self,
        node: str,
        connection: Connection | None,
        storage_folder: str,
        module: str,
        verb: str,
        request: dict[str, Any],
        deliver: Deliver,
    ) -> None:
        self.node = node
        self._connection = connection
        self._command = (
            [sys.executable, "-S", "-m", module, verb]
            if connection is None
            else session_command(connection, storage_folder, module, verb)
        )
        self._storage_folder = storage_folder
        self._verb = verb
        self._deliver = deliver
        self._writing = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, args=(json.dumps(request).encode() + b"\n",), daemon=True)
        self._thread.start()

    def send(self, command: dict[str, Any]) -> None:
        """Sends a command; a verb that has ended says so by its last event, not here."""
        with self._writing:
            self._write(json.dumps(command).encode() + b"\n")

    def show_life(self) -> None:
        """Tells the verb that this controller is still there."""
        if self._writing.acquire(blocking=False):
            try:
                self._write(b"\n")
            finally:
                self._writing.release()

    def close(self) -> None:
        """Ends the verb by closing its standard input, and waits for it."""
        with self._writing:
            self._closed = True
            process = self._process
            if process is not None:
                with contextlib.suppress(OSError):
                    cast(IO[bytes], process.stdin).close()
        if process is not None:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
        self._thread.join()

    def _write(self, content: bytes) -> None:
        process = self._process
        if process is None or self._closed:
            return
        stdin = cast(IO[bytes], process.stdin)
        with contextlib.suppress(OSError):
            stdin.write(content)
            stdin.flush()

    def _run(self, request: bytes) -> None:
        try:
            code, words = self._run_once(request)
            if self._connection is not None and runtime_is_absent(code):
                install_runtime(self._connection, self._storage_folder)
                code, words = self._run_once(request)
            reason = self._explained(code, words) if code else None
        except NodeError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - a session that is lost without a word would be waited for
            reason = f"{self.node}: {error!r}"
        self._deliver(self, {"event": _ENDED, "reason": reason})

    def _run_once(self, request: bytes) -> tuple[int, str]:
        with self._writing:
            if self._closed:
                return 0, ""
            process = self._process = subprocess.Popen(
                self._command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        words: list[str] = []
        listener = threading.Thread(target=_collect, args=(process.stderr, words), daemon=True)
        listener.start()
        with self._writing:
            self._write(request)
        for line in cast(IO[bytes], process.stdout):
            self._deliver(self, json.loads(line))
        process.wait()
        listener.join()
        return process.returncode, "\n".join(words)

    def _explained(self, code: int, words: str) -> str:
        if self._connection is None:
            return f"{self.node}: {words.strip() or f'its process ended ({code})'}"
        return explain(self._connection, self._verb, code, words, 0)


def _collect(stream: IO[bytes] | None, words: list[str]) -> None:
    words.extend(raw.decode(errors="replace").rstrip() for raw in stream or ())
