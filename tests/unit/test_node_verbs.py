"""The node's verbs on plain folders: claims, checks, probes."""

import hashlib
import importlib
import io
import json
import os
import socket
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ops.image_building import archive_identity
from runtime.common.image_identity import image_identity
from runtime.node import checks, claims, probes
from runtime.node.__main__ import VERBS
from runtime.node.errors import NodeTaskError


def claim_request(folder: Path, stack: str, group: str = "main") -> dict[str, str]:
    return {"storage_folder": str(folder), "stack": stack, "group": group, "by": "ann@desk"}


def test_a_node_serves_one_stack(tmp_path: Path) -> None:
    claims.take(claim_request(tmp_path, "one"))
    claims.take(claim_request(tmp_path, "one"))
    with pytest.raises(NodeTaskError, match=r"serves stack one, group main, since .*pulumi destroy --stack one"):
        claims.take(claim_request(tmp_path, "two"))
    assert claims.release(claim_request(tmp_path, "two")) == {"released": False}
    assert claims.release(claim_request(tmp_path, "one")) == {"released": True}
    claims.take(claim_request(tmp_path, "two"))
    assert (claims.holder({"storage_folder": str(tmp_path)}) or {})["stack"] == "two"


def test_a_claim_moves_between_groups_of_its_stack(tmp_path: Path) -> None:
    """The new group claims before the old one's claim is released, which must then not free the node."""
    claims.take(claim_request(tmp_path, "one", "a"))
    claims.take(claim_request(tmp_path, "one", "b"))
    assert claims.release(claim_request(tmp_path, "one", "a")) == {"released": False}
    assert (claims.holder({"storage_folder": str(tmp_path)}) or {})["group"] == "b"


def test_only_one_of_many_gets_the_claim(tmp_path: Path) -> None:
    refused: list[str] = []

    def take(stack: str) -> None:
        try:
            claims.take(claim_request(tmp_path, stack))
        except NodeTaskError:
            refused.append(stack)

    threads = [threading.Thread(target=take, args=(f"stack-{n}",)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    holder = claims.holder({"storage_folder": str(tmp_path)})
    assert holder is not None
    assert len(refused) == 15
    assert holder["stack"] not in refused
    assert [path.name for path in tmp_path.iterdir()] == ["claim.json"]


def test_image_identity_is_about_content_not_about_how_a_store_writes_it() -> None:
    plain = image_identity(["sha256:a"], {"Env": ["A=1"]}, "amd64")
    assert plain == image_identity(
        ["sha256:a"], {"Env": ["A=1"], "Cmd": None, "Entrypoint": [], "Labels": {"x": "y"}}, "amd64"
    )
    assert plain != image_identity(["sha256:b"], {"Env": ["A=1"]}, "amd64")
    assert plain != image_identity(["sha256:a"], {"Env": ["A=2"]}, "amd64")
    assert plain != image_identity(["sha256:a"], {"Env": ["A=1"]}, "arm64")


def test_the_identity_of_an_archive_is_that_of_its_config(tmp_path: Path) -> None:
    config = json.dumps(
        {"architecture": "arm64", "config": {"Cmd": ["x"]}, "rootfs": {"diff_ids": ["sha256:a"]}}
    ).encode()
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    with tarfile.open(tmp_path / "image.tar", "w") as archive:
        for member, content in (("manifest.json", json.dumps([{"Config": name}]).encode()), (name, config)):
            info = tarfile.TarInfo(member)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    assert archive_identity(tmp_path / "image.tar") == image_identity(["sha256:a"], {"Cmd": ["x"]}, "arm64")


def test_a_port_is_free_when_nobody_or_only_the_old_rank_listens() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        number = listener.getsockname()[1]
        assert "in use on this node" in (checks.port(number, set()) or "")
        assert checks.port(number, {os.getpid()}) is None
    assert checks.port(number, set()) is None


def test_an_accelerator_is_free_when_only_ranks_that_go_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '4711, /usr/bin/python3'\necho '4712, VLLM::Worker'\n")
    tool.chmod(0o755)
    assert checks.accelerators({4711, 4712}) is None
    assert "VLLM::Worker (4712) of outside" in (checks.accelerators({4711}) or "")
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not talk to the driver'\nexit 9\n")
    assert "could not talk to the driver" in (checks.accelerators(set()) or "")


def test_memory_of_the_old_rank_counts_as_free() -> None:
    available = checks.meminfo_bytes("MemAvailable")
    own = checks.anonymous_bytes(os.getpid())
    assert own > 10_000_000
    assert checks.memory(available // 2, set()) is None
    text = checks.memory(available * 2, {os.getpid()}) or ""
    assert "MiB are available and" in text
    assert checks.anonymous_bytes(2**22 + 1) == 0


def test_a_wrong_clock_and_an_absent_folder_are_named() -> None:
    assert "off the controller" in (checks.clock(0.0) or "")
    assert "/nowhere/at/all not on this node" in (checks.mount_sources(["/", "/nowhere/at/all"]) or "")
    assert checks.mount_sources(["/"]) is None
    assert "/dev/nothing not on this node" in (checks.devices(["/dev/null", "/dev/nothing"]) or "")
    assert checks.devices(["/dev/null"]) is None
    assert "MiB, ranks need" in (checks.shared_memory(1 << 60) or "")


class _Head(BaseHTTPRequestHandler):
    answers: dict[str, Any] = {}

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = self.answers[body["messages"][0]["content"]]
        self.send_response(answer.get("status", 200))
        self.end_headers()
        choice = {"message": {"content": answer.get("text")}, "logprobs": {"content": answer.get("logprobs", [])}}
        self.wfile.write(json.dumps({"choices": [choice]}).encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Says nothing."""


@pytest.fixture
def head() -> Iterator[dict[str, Any]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Head)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield {
        "port": server.server_address[1],
        "served_name": "m",
        "start_timeout_seconds": 2,
        "answer_timeout_seconds": 2,
    }
    server.shutdown()
    server.server_close()


QUESTION = {"prompt": "What is 17 x 23?", "answer": "391", "match": "contains", "tokens": 8}


def test_a_head_that_answers_right_is_ready(head: dict[str, Any]) -> None:
    _Head.answers = {QUESTION["prompt"]: {"text": "17 x 23 = 391", "logprobs": [{"token": "1", "logprob": -0.1}]}}
    assert probes.probe({**head, "probes": [QUESTION]}) == {"answered": 1}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"text": "390"}, "expected '391' .*got '390'"),
        ({"text": None}, "got ''"),
        ({"text": "391", "logprobs": [{"token": "3", "logprob": float("nan")}]}, "log probability of '3' is nan"),
        ({"status": 500}, "the server answered 500"),
    ],
)
def test_a_head_that_is_healthy_and_wrong_is_not_ready(
    head: dict[str, Any], answer: dict[str, Any], words: str
) -> None:
    _Head.answers = {QUESTION["prompt"]: answer}
    with pytest.raises(NodeTaskError, match=words):
        probes.probe({**head, "probes": [QUESTION]})


def test_an_exact_probe_wants_the_whole_answer() -> None:
    exact = QUESTION | {"match": "exact"}
    probes.check_answer(exact, {"message": {"content": " 391\n"}})
    with pytest.raises(NodeTaskError, match="exact"):
        probes.check_answer(exact, {"message": {"content": "17 x 23 = 391"}})


def test_a_head_that_nobody_starts_is_not_healthy(head: dict[str, Any]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        request = {**head, "port": unused.getsockname()[1], "start_timeout_seconds": 1, "probes": []}
        with pytest.raises(NodeTaskError, match="not healthy within 1 s"):
            probes.probe(request)


def test_every_verb_is_where_the_table_says() -> None:
    for place in VERBS.values():
        module, _, function = place.partition(":")
        assert callable(getattr(importlib.import_module(module), function)), place
