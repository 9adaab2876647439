"""Stands for vLLM where a test is about order, failure and state: takes its arguments, meets its peers, answers.

Like vLLM, a worker whose head has gone waits for ever, and `/health` is 200 while an answer may fail. The variable
CHEAP_FAULT makes a rank misbehave: `die-at-start`, `die-at-answer`, `wrong-answer`, `slow-start`.
CHEAP_DELAY_SECONDS is what an answer takes.
"""

import argparse
import json
import os
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWERS = {"What is 17 x 23?": "17 x 23 = 391", "Who are you?": "A cheap engine."}
WORKERS: list[socket.socket] = []
FAULT = os.environ.get("CHEAP_FAULT")
DELAY_SECONDS = float(os.environ.get("CHEAP_DELAY_SECONDS", "0"))
_HELLO_BYTES = 64 << 10


def say(text: str) -> None:
    print(text, flush=True)


def meet_workers(arguments: argparse.Namespace) -> None:
    """Waits for every worker and refuses one that was started with other arguments."""
    listener = socket.create_server((arguments.master_addr, arguments.master_port))
    for _ in range(arguments.nnodes - 1):
        connection, peer = listener.accept()
        hello = b""
        while len(hello) < _HELLO_BYTES:
            hello += connection.recv(_HELLO_BYTES)
        generation = hello.strip().decode()
        if generation != generation_of(arguments):
            sys.exit(f"a stale rank from {peer[0]} joined: {generation} is not {generation_of(arguments)}")
        say(f"worker {peer[0]} joined")
        WORKERS.append(connection)


def join_head(arguments: argparse.Namespace) -> None:
    """Connects to the head, over the rail, and waits for ever."""
    while True:
        try:
            connection = socket.create_connection((arguments.master_addr, arguments.master_port), timeout=1)
            break
        except OSError:
            time.sleep(0.1)
    connection.settimeout(None)
    connection.sendall(generation_of(arguments).encode().ljust(_HELLO_BYTES))
    say("joined the head")
    while True:
        if not connection.recv(_HELLO_BYTES):
            time.sleep(600)  # the head has gone


def compute_together() -> None:
    """Sends each worker something over the rail, as a tensor-parallel answer would."""
    for worker in WORKERS:
        worker.sendall(b"x" * _HELLO_BYTES)


def generation_of(arguments: argparse.Namespace) -> str:
    return f"max-model-len={arguments.max_model_len}"


class QuietServer(ThreadingHTTPServer):
    """A server that does not say when a client has gone before its answer: ranks' last words are judged by tests."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing."""


class Api(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(200, {})

    def do_POST(self) -> None:
        if FAULT == "die-at-answer":
            say("RuntimeError: the first answer killed the engine")
            self._answer(500, {"error": "EngineDeadError"})
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        compute_together()
        time.sleep(DELAY_SECONDS)
        text = "no" if FAULT == "wrong-answer" else ANSWERS[body["messages"][0]["content"]]
        self._answer(200, {"choices": [{"message": {"content": text}}]})

    def _answer(self, status: int, content: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        say(format % args)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("serve", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--served-model-name")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--tensor-parallel-size", type=int)
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master-addr")
    parser.add_argument("--master-port", type=int)
    parser.add_argument("--distributed-executor-backend")
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--pipeline-parallel-size", type=int)
    arguments = parser.parse_args()
    say(f"rank {arguments.node_rank} of {arguments.nnodes} starts, {generation_of(arguments)}")
    if FAULT == "slow-start":
        time.sleep(600)
    if arguments.headless:
        join_head(arguments)
    if FAULT == "die-at-start":
        time.sleep(2)
        sys.exit("ValueError: the head could not start")
    meet_workers(arguments) if arguments.nnodes > 1 else None
    say("serving")
    QuietServer((arguments.host, arguments.port), Api).serve_forever()


main()
