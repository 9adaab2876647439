"""Stands for an engine below a supervisor: meets its peers, serves health, and writes down whom it meets.

It holds a lock on a file that names its rank and its view for as long as it lives, so that every other child, and the
test, can see whether one of another view is alive at the same time.
"""

import fcntl
import json
import os
import signal
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SETTINGS: dict[str, Any] = json.loads(sys.argv[1])
RANK, RANKS = SETTINGS["rank"], SETTINGS["ranks"]
FOLDER = Path(SETTINGS["folder"])
KEPT: list[socket.socket] = []
"""Connections stay open as long as the child lives."""

VIEW = "|".join(json.loads((Path(SETTINGS["record"]) / "status.json").read_text())["view"])


def log(word: str, **more: Any) -> None:
    line = json.dumps({"word": word, "rank": RANK, "view": VIEW, "at": time.monotonic(), **more})
    with (FOLDER / "log").open("a") as file:
        file.write(line + "\n")


def live_and_look() -> None:
    own = FOLDER / "alive" / f"{RANK} {VIEW}"
    handle = os.open(own, os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    log("start")
    for path in (FOLDER / "alive").iterdir():
        if path == own:
            continue
        with path.open("r+") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                rank, view = path.name.split(" ")
                if view != VIEW:
                    log("overlap", other_rank=int(rank), other_view=view)
            else:
                if path.name.split(" ")[1] != VIEW:
                    path.unlink()


def meet() -> None:
    if RANK == 0:
        listener = socket.create_server(("127.0.0.1", SETTINGS["meet_port"]))
        kept = []
        for _ in range(RANKS - 1):
            connection, _ = listener.accept()
            theirs = connection.makefile().readline().strip()
            connection.sendall(f"{VIEW}\n".encode())
            log("met" if theirs == VIEW else "met-old", other_view=theirs)
            kept.append(connection)
        KEPT.extend(kept)
        return
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", SETTINGS["meet_port"]))
            break
        except OSError:
            time.sleep(0.05)
    connection.sendall(f"{VIEW}\n".encode())
    theirs = connection.makefile().readline().strip()
    log("met" if theirs == VIEW else "met-old", other_view=theirs)
    KEPT.append(connection)


class Api(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(body.get("seconds", 0))
        self.send_response(200)
        self.end_headers()
        message = {"content": SETTINGS.get("answer", "17 x 23 = 391")}
        self.wfile.write(json.dumps({"choices": [{"message": message}]}).encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Says nothing."""


def main() -> None:
    live_and_look()
    if SETTINGS.get("exit_code") is not None:
        print("a last word", flush=True)
        sys.exit(SETTINGS["exit_code"])
    if RANKS > 1:
        meet()
    if RANK == 0 and SETTINGS["http_port"]:
        ThreadingHTTPServer(("127.0.0.1", SETTINGS["http_port"]), Api).serve_forever()
    signal.pause()


main()
