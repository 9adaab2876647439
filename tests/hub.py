"""A server that speaks enough of the interface of Hugging Face for its own client to download one revision."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlparse

from tests.checkpoints import REPOSITORY, REVISION, git_blob_hash


@dataclass
class Hub:
    """A running server.

    Attributes:
        endpoint: its address.
        files: of the one repository, by name.
        requests: what was asked, in order.
        broken_off: names of files of which only half is sent.
    """

    endpoint: str
    files: Mapping[str, bytes]
    requests: list[str] = field(default_factory=list)
    broken_off: set[str] = field(default_factory=set)


@contextmanager
def hub(files: Mapping[str, bytes], address: str = "127.0.0.1") -> Iterator[Hub]:
    """Serves one revision of one repository until the block ends."""
    server = ThreadingHTTPServer((address, 0), _Handler)
    made = Hub(f"http://{address}:{server.server_address[1]}", files)
    server.hub = made  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> Hub:
        return self.server.hub  # type: ignore[attr-defined]

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = urlparse(self.path).path
        self.hub.requests.append(f"{self.command} {path}")
        file = path.removeprefix(f"/{REPOSITORY}/resolve/{REVISION}/")
        if path == f"/api/models/{REPOSITORY}/revision/{REVISION}":
            siblings = [{"rfilename": name} for name in self.hub.files]
            self._send(json.dumps({"id": REPOSITORY, "sha": REVISION, "siblings": siblings}).encode(), {}, body)
        elif path == f"/api/models/{REPOSITORY}/tree/{REVISION}":
            self._send(json.dumps([self._entry(name) for name in self.hub.files]).encode(), {}, body)
        elif file in self.hub.files:
            self._send_file(file, body)
        else:
            self._send(b'{"error": "no such thing"}', {}, body, 404)

    def _entry(self, name: str) -> dict[str, Any]:
        content = self.hub.files[name]
        entry: dict[str, Any] = {
            "type": "file",
            "path": name,
            "size": len(content),
            "oid": git_blob_hash(content),
        }
        if name.endswith(".safetensors"):
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 1}
        return entry

    def _send_file(self, name: str, body: bool) -> None:
        content = self.hub.files[name]
        large = name.endswith(".safetensors")
        etag = hashlib.sha256(content).hexdigest() if large else git_blob_hash(content)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": REVISION, "Accept-Ranges": "bytes"}
        start = 0
        if given := self.headers.get("Range"):
            start = int(given.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        rest = content[start:]
        half = len(rest) // 2 if name in self.hub.broken_off else None
        self._send(rest, headers, body, 206 if given else 200, half)

    def _send(
        self, content: bytes, headers: dict[str, str], body: bool, code: int = 200, most: int | None = None
    ) -> None:
        self.send_response(code)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content[:most])
        if most is not None:
            self.close_connection = True
