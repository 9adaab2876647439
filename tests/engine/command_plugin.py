"""Speaks to the command plugin as the engine does, and keeps what it logs."""

import subprocess
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import MessageToDict, ParseDict
from pulumi.runtime.proto import engine_pb2_grpc, provider_pb2, provider_pb2_grpc

_LIMIT = 60.0
_REQUESTS: dict[str, type[Any]] = {
    "GetPluginInfo": Empty,
    "Configure": provider_pb2.ConfigureRequest,
    "Check": provider_pb2.CheckRequest,
    "Diff": provider_pb2.DiffRequest,
    "Create": provider_pb2.CreateRequest,
    "Update": provider_pb2.UpdateRequest,
    "Read": provider_pb2.ReadRequest,
    "Delete": provider_pb2.DeleteRequest,
    "Invoke": provider_pb2.InvokeRequest,
    "Cancel": Empty,
}

LogLine = tuple[int, str, bool]
"""Severity, text, and whether it is only shown for a while."""


class _Engine(engine_pb2_grpc.EngineServicer):
    """The part of the engine that plugins call."""

    def __init__(self) -> None:
        self.log: list[LogLine] = []

    def Log(self, request: Any, context: Any) -> Empty:  # noqa: ARG002, N802 - the name is the protocol's
        self.log.append((request.severity, request.message, request.ephemeral))
        return Empty()


class Plugin:
    """A running plugin."""

    def __init__(self, process: "subprocess.Popen[str]", channel: grpc.Channel, engine: _Engine) -> None:
        self.process = process
        self._stub = provider_pb2_grpc.ResourceProviderStub(channel)
        self._engine = engine

    def call(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        """Returns the response, or the error as `{"ERROR": [code, text]}`."""
        return self.answer(self.start(name, request))

    def start(self, name: str, request: dict[str, Any]) -> Any:
        """Sends a request without waiting for the response."""
        return getattr(self._stub, name).future(ParseDict(request, _REQUESTS[name]()), timeout=_LIMIT)

    def answer(self, call: Any) -> dict[str, Any]:
        """Waits for the response."""
        try:
            return MessageToDict(call.result())
        except grpc.RpcError as error:
            return {"ERROR": [error.code().name, error.details()]}  # pyright: ignore[reportAttributeAccessIssue]

    def take_log(self, expected: int = 0) -> list[LogLine]:
        """Returns the lines since the last call, sorted; waits a little for the expected number of them."""
        deadline = time.monotonic() + 2
        while len(self._engine.log) < expected and time.monotonic() < deadline:
            time.sleep(0.01)
        lines, self._engine.log[:] = list(self._engine.log), []
        return sorted(lines)

    def raw_log(self) -> list[LogLine]:
        """Returns the lines in the order in which they arrived."""
        return list(self._engine.log)


@contextmanager
def running_plugin(program: Path) -> Iterator[Plugin]:
    """Starts a plugin as the engine does, and ends it."""
    engine = _Engine()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4), options=[("grpc.so_reuseport", 0)])
    engine_pb2_grpc.add_EngineServicer_to_server(engine, server)
    engine_port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    process = subprocess.Popen(
        [str(program), f"127.0.0.1:{engine_port}"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port.isdigit(), f"the plugin printed {port!r} instead of its port"
        # The engine, which is written in Go, takes as much.
        limits = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        limits += [("grpc.max_metadata_size", 1 << 20), ("grpc.absolute_max_metadata_size", 16 << 20)]
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=limits) as channel:
            yield Plugin(process, channel, engine)
    finally:
        process.kill()
        process.wait()
        server.stop(None)


def urn(kind: str) -> str:
    """Returns a URN for a resource, for example of kind `local:Command`."""
    return f"urn:pulumi:s::p::command:{kind}::x"
