"""Pinning a base: a real registry's conversation, with and without a token, on loopback."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ops.errors import OperationError
from ops.image_pin import pin, with_digest

DIGEST = "sha256:" + "a" * 64
INDEX = {
    "manifests": [
        {"platform": {"os": "linux", "architecture": "arm64"}},
        {"platform": {"os": "linux", "architecture": "amd64"}},
        {"platform": {"os": "unknown", "architecture": "unknown"}},
    ]
}


@dataclass
class Registry:
    """A registry that knows one image."""

    wants_token: bool = False
    digest: str | None = DIGEST
    asked: list[str] = field(default_factory=list)
    port: int = 0


class _Handler(BaseHTTPRequestHandler):
    registry: Registry

    def do_GET(self) -> None:
        registry = self.registry
        registry.asked.append(self.path)
        if self.path.startswith("/token"):
            self._answer(200, {"token": "t"})
        elif registry.wants_token and self.headers.get("Authorization") != "Bearer t":
            realm = f'Bearer realm="http://127.0.0.1:{registry.port}/token",service="s",scope="repository:us/vllm:pull"'
            self._answer(401, {}, {"WWW-Authenticate": realm})
        elif self.path == "/v2/us/vllm/manifests/v1":
            assert "application/vnd.oci.image.index.v1+json" in self.headers["Accept"]
            self._answer(200, INDEX, {"Docker-Content-Digest": registry.digest} if registry.digest else {})
        else:
            self._answer(404, {"errors": [{"code": "MANIFEST_UNKNOWN"}]})

    def _answer(self, code: int, body: object, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(code)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        del code, size


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"registry": made}))
    made.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield made
    server.shutdown()
    server.server_close()


def chain(folder: Path, registry: Registry, digest: str = "", tag: str = "v1") -> Path:
    made = folder / "released"
    made.mkdir()
    (made / "chain.yaml").write_text(
        f"# why\npurpose: p\nbase:\n  # the author's\n  repository: 127.0.0.1:{registry.port}/us/vllm\n"
        f"  tag: {tag} # moves\n{digest}packages_folder: /p\n"
    )
    return made


@pytest.mark.parametrize("wants_token", [False, True])
def test_the_digest_is_written_below_the_tag_and_all_else_stays(
    registry: Registry, tmp_path: Path, wants_token: bool
) -> None:
    registry.wants_token = wants_token
    folder = chain(tmp_path, registry)
    before = (folder / "chain.yaml").read_text()
    pinned = pin(folder)
    assert (pinned.before, pinned.digest, pinned.platforms) == (None, DIGEST, ("linux/arm64", "linux/amd64"))
    after = (folder / "chain.yaml").read_text()
    assert after == before.replace("  tag: v1 # moves\n", f"  tag: v1 # moves\n  digest: {DIGEST}\n")
    if wants_token:
        assert "/token?service=s&scope=repository%3Aus%2Fvllm%3Apull" in registry.asked


def test_a_digest_that_is_there_is_exchanged_and_named(registry: Registry, tmp_path: Path) -> None:
    old = "sha256:" + "b" * 64
    folder = chain(tmp_path, registry, digest=f"  digest: {old} # of March\n")
    assert pin(folder).before == old
    assert f"  digest: {DIGEST} # of March\n" in (folder / "chain.yaml").read_text()


def test_an_unknown_tag_and_a_registry_without_digests_change_nothing(registry: Registry, tmp_path: Path) -> None:
    folder = chain(tmp_path, registry, tag="v9")
    before = (folder / "chain.yaml").read_text()
    with pytest.raises(OperationError, match=r"us/vllm:v9: 127\.0\.0\.1:\d+ gives no digest for it: .*404"):
        pin(folder)
    registry.digest = None
    (folder / "chain.yaml").write_text(before.replace("v9", "v1"))
    with pytest.raises(OperationError, match="answered without a digest"):
        pin(folder)
    assert "digest:" not in (folder / "chain.yaml").read_text()


def test_a_base_without_a_tag_cannot_be_pinned(tmp_path: Path) -> None:
    folder = tmp_path / "made-here"
    folder.mkdir()
    (folder / "chain.yaml").write_text("purpose: p\ndebootstrap: {suite: bookworm}\n")
    with pytest.raises(OperationError, match=r"made-here/chain\.yaml: base: None: only a base with repository and tag"):
        pin(folder)
    with pytest.raises(OperationError, match="the file does not exist"):
        pin(tmp_path / "absent")


def test_only_the_base_has_its_digest_changed() -> None:
    text = "base:\n  tag: t\nother:\n  tag: u\n"
    assert with_digest(text, DIGEST) == f"base:\n  tag: t\n  digest: {DIGEST}\nother:\n  tag: u\n"
