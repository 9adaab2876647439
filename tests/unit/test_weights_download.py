"""A download with the real client of Hugging Face from a server that speaks its interface."""

import sys
from pathlib import Path
from typing import Any

import pytest

from runtime.common.weights_folder import examine
from runtime.node import weights_sources
from runtime.node.errors import NodeTaskError
from tests.checkpoints import REPOSITORY, REVISION, checkpoint
from tests.hub import Hub, hub


def request(server: Hub, cache: Path, **change: Any) -> dict[str, Any]:
    return {
        "repository": REPOSITORY,
        "revision": REVISION,
        "cache_folder": str(cache),
        "python": sys.executable,
        "endpoint": server.endpoint,
        **change,
    }


def quiet(_: str) -> None:
    pass


def examined(folder: str, memories: Path) -> Any:
    asked = {"layout": "huggingface", "revision": REVISION, "requires": ["config"], "required_files": []}
    return examine(asked, Path(folder), memories, quiet)


def test_the_pinned_revision_arrives_as_a_whole_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    files = checkpoint()
    with hub(files) as server:
        folder = weights_sources.download(request(server, tmp_path / "hub"))["folder"]
    found = examined(folder, tmp_path)
    assert {name: file.size_bytes for name, file in found.manifest.content().items()} == {
        name: len(content) for name, content in files.items()
    }
    assert found.manifest.texts == {"refs/main": REVISION}
    assert not [asked for asked in server.requests if "main" in asked]


def test_a_broken_download_says_so_and_goes_on_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = "model-00002-of-00002.safetensors"
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "1")
    with hub(checkpoint(bytes_each=100_000)) as server:
        server.broken_off.add(shard)
        with pytest.raises(NodeTaskError, match=rf"the download of {REPOSITORY} at {REVISION} failed: .*"):
            weights_sources.download(request(server, tmp_path / "hub"))
        server.broken_off.clear()
        folder = weights_sources.download(request(server, tmp_path / "hub"))["folder"]
    assert examined(folder, tmp_path).manifest.size_bytes > 200_000


def test_another_revision_is_not_what_the_server_has(tmp_path: Path) -> None:
    with hub(checkpoint()) as server, pytest.raises(NodeTaskError, match="What arrived is kept"):
        weights_sources.download(request(server, tmp_path / "hub", revision="f" * 40))


def test_a_node_without_the_client_is_told_how_to_get_it(tmp_path: Path) -> None:
    without = tmp_path / "python"
    without.write_text("#!/bin/sh\nexit 1\n")
    without.chmod(0o755)
    with hub(checkpoint()) as server:
        with pytest.raises(NodeTaskError, match=r"pip install huggingface_hub.*python: /opt/hf/bin/python"):
            weights_sources.download(request(server, tmp_path / "hub", python=str(without)))
        with pytest.raises(NodeTaskError, match="/no/python, which the stack file names"):
            weights_sources.download(request(server, tmp_path / "hub", python="/no/python"))
        assert server.requests == []
