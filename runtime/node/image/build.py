"""Builds one image on this node from a context that arrives on standard input; nothing of it is left but the log."""

import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

from runtime.node.docker import docker, inspect
from runtime.node.errors import NodeTaskError
from runtime.node.files import locked
from runtime.node.image.content import identity
from runtime.node.progress import tell

_FIRST_CLIENT_WITHOUT_BUILDKIT = 23  # since then it comes as a plugin, buildx
_SHOWN_LINES = 20
_SHOWN = re.compile(r": \d+ edits applied|\b(Downloading|Installing|Successfully installed|Successfully uninstalled)\b")
_BUILDKIT_PREFIX = re.compile(r"^#\d+ (\d+\.\d+ )?")


def build(request: dict[str, Any], payload: IO[bytes]) -> dict[str, Any]:
    """Builds `reference` unless it is there with the same identity.

    Args:
        request: `storage_folder`, `reference`, `parent` (the image it is built on), `name` (for messages), `identity`
            (value of the label `identity_label` once it is built), `adds_layers`, `network` (`none` or `host`), `log`
            (file), `limit_seconds`, `read` (a file of the image whose text is wanted, or none).
        payload: the context as a tar, with Dockerfile.buildkit and Dockerfile.classic.

    Returns:
        identity, layers and labels of the image, and the text that was asked for.

    Raises:
        NodeTaskError: the build failed, took too long, or added no layer; the image then has no tag.
    """
    with locked(Path(request["storage_folder"]) / "locks" / "image-build"):
        found = identity(request)
        if not found["labels"] or found["labels"].get(request["identity_label"]) != request["identity"]:
            found = _build(request, payload)
    return {**found, "text": _read(request["reference"], request["read"]) if request["read"] else None}


def _build(request: dict[str, Any], payload: IO[bytes]) -> dict[str, Any]:
    builder = builder_of_this_node()
    log = Path(request["log"])
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    tell(f"{request['name']}: building with {'BuildKit' if builder == 'buildkit' else 'the classic builder'}")
    with tempfile.TemporaryDirectory() as folder:
        identity_file = Path(folder) / "image"
        _run(_command(request, builder, identity_file), request, builder, payload, log)
        built = identity_file.read_text().strip()
    _require_new_layers(request, built)
    docker("tag", built, request["reference"])
    tell(f"{request['name']}: built in {time.monotonic() - started:.0f} s")
    return identity(request)


def build_from_standard_input(request: dict[str, Any]) -> dict[str, Any]:
    """Builds with the payload that follows the request."""
    return build(request, sys.stdin.buffer)


def builder_of_this_node() -> str:
    """Returns `buildkit` where this node's docker command can use it, otherwise `classic`."""
    version = docker("version", "--format", "{{.Client.Version}}").stdout.strip()
    if int(version.partition(".")[0]) < _FIRST_CLIENT_WITHOUT_BUILDKIT:
        return "buildkit"
    return "buildkit" if docker("buildx", "version", check=False).returncode == 0 else "classic"


def _command(request: dict[str, Any], builder: str, identity_file: Path) -> list[str]:
    progress = ["--progress", "plain"] if builder == "buildkit" else ["--force-rm"]
    return [
        *("docker", "build", *progress, "--network", request["network"]),
        *("--iidfile", str(identity_file), "--file", f"Dockerfile.{builder}", "-"),
    ]


def _run(command: list[str], request: dict[str, Any], builder: str, payload: IO[bytes], log: Path) -> None:
    """Runs the build with the context on its standard input, keeps its words and shows some of them."""
    environment = os.environ | {"DOCKER_BUILDKIT": str(int(builder == "buildkit")), "BUILDX_BUILDER": "default"}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    )
    assert process.stdin is not None
    assert process.stdout is not None
    sender = threading.Thread(target=_send, args=(payload, process.stdin), daemon=True)
    sender.start()
    late = threading.Timer(request["limit_seconds"], process.kill)
    late.start()
    try:
        last = _listen(process.stdout, request["name"], log)
        code = process.wait()
    finally:
        over_time = not late.is_alive()
        late.cancel()
        process.kill()
        process.wait()
    if over_time:
        raise NodeTaskError(
            f"{request['name']}: not built within {request['limit_seconds']} s. Its words so far are in {log} on this "
            "node; raise image_build/step_timeout_seconds in the stack file if it needs longer\n" + "\n".join(last)
        )
    if code:
        raise NodeTaskError(
            f"{request['name']}: the build failed; the last lines of its log ({log} on this node):\n" + "\n".join(last)
        )


def _send(payload: IO[bytes], target: IO[bytes]) -> None:
    try:
        shutil.copyfileobj(payload, target)
        target.close()
    except BrokenPipeError:
        pass  # the build ended early; its words say why


def _listen(stream: IO[bytes], name: str, log: Path) -> list[str]:
    last: collections.deque[str] = collections.deque(maxlen=_SHOWN_LINES)
    with log.open("w") as file:
        for raw in stream:
            line = raw.decode(errors="replace").rstrip()
            print(line, file=file, flush=True)
            if not (text := _BUILDKIT_PREFIX.sub("", line)):
                continue
            last.append(text)
            if _SHOWN.search(text):
                tell(text if text.startswith(name) else f"{name}: {text[:160]}")
    return list(last)


def _require_new_layers(request: dict[str, Any], built: str) -> None:
    if not request["adds_layers"]:
        return
    before, after = (_layers(name) for name in (request["parent"], built))
    if len(after) <= len(before) or after[: len(before)] != before:
        raise NodeTaskError(
            f"{request['name']}: the build added no layer to {request['parent']} ({len(before)} layers before, "
            f"{len(after)} after): the step did nothing. Look at its lines in {request['log']} on this node"
        )


def _layers(name: str) -> list[str]:
    image = inspect("image", name)
    if image is None:
        raise NodeTaskError(f"{name} is not on this node any more: somebody removed it during the build; start again")
    return image["RootFS"]["Layers"]


def _read(image: str, path: str) -> str:
    """Returns the text of a file in an image, without running anything of the image."""
    container = docker("create", image, "none").stdout.strip()
    try:
        with tempfile.TemporaryDirectory() as folder:
            docker("cp", f"{container}:{path}", folder)
            return (Path(folder) / Path(path).name).read_text()
    finally:
        docker("rm", "--force", container)
