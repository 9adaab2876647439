"""Runs the all-reduce program in a container of the deployment's own image on this node."""

import json
import subprocess
from pathlib import Path
from typing import Any

from runtime.fabric.request import FabricRequest
from runtime.fabric.resolving import Patience, Surroundings, resolve
from runtime.fabric.result import FabricError
from runtime.node.docker import docker
from runtime.node.errors import NodeTaskError
from runtime.node.progress import tell

HERE = Surroundings()
"""This node's own devices."""

_NAME = "gb10-serving-fabric-check"
_INSIDE = "/gb10-serving/all_reduce.py"
_LAST_LINES = 15


def all_reduce(request: dict[str, Any], surroundings: Surroundings = HERE) -> dict[str, Any]:
    """Runs one variant on this node, together with its peers, and returns what the program wrote.

    Args:
        request: `fabric` (as `runtime.fabric` reads it), `image`, `environment`, `mounts` (each `source`, `target`,
            `read_only`), `devices`, `capabilities`, `gpus`, `processes`, `locked_memory_bytes`, `open_files`, `node`
            (its number), `nodes`, `head`, `port`, `seconds`.
        surroundings: where the fabric is looked at.

    Raises:
        NodeTaskError: the fabric is not what is asked for, or the program failed; its last lines.
    """
    try:
        found = resolve(
            FabricRequest.from_plain(request["fabric"]), {}, surroundings, Patience(wait_seconds=5, tell=tell)
        )
    except FabricError as error:
        raise NodeTaskError(str(error)) from None
    command = container_command(request, found.environment)
    docker("rm", "--force", _NAME, check=False)
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=request["seconds"], check=False)
    except subprocess.TimeoutExpired:
        raise NodeTaskError(
            f"all-reduce did not end within {request['seconds']} s: a peer is missing, or a port of the collective is "
            "blocked; see the mesh"
        ) from None
    finally:
        docker("rm", "--force", _NAME, check=False)
    written = [line for line in result.stdout.splitlines() if line.startswith("{")]
    if result.returncode or not written:
        words = "\n".join((result.stdout + result.stderr).splitlines()[-_LAST_LINES:])
        raise NodeTaskError(f"all-reduce in {request['image']} ended with {result.returncode}:\n{words}")
    return json.loads(written[-1])


def container_command(request: dict[str, Any], found: dict[str, str]) -> list[str]:
    """Returns the `docker run` of the program: the rank's own container but for what it runs."""
    program = Path(__file__).with_name("all_reduce.py")
    chosen = {**request["environment"], **found}
    environment = {
        **chosen,
        "CHECK_KEPT": ",".join(chosen),
        "CHECK_NODE": str(request["node"]),
        "CHECK_NODES": str(request["nodes"]),
        "CHECK_HEAD": request["head"],
        "CHECK_PORT": str(request["port"]),
        "CHECK_PROCESSES": str(request["processes"]),
    }
    memory, files = request["locked_memory_bytes"], request["open_files"]
    return [
        *("docker", "run", "--rm", "--name", _NAME, "--network", "host", "--ipc", "host", "--pull", "never"),
        *(["--gpus", "all"] if request["gpus"] else []),
        *(word for device in request["devices"] for word in ("--device", device)),
        *(word for capability in request["capabilities"] for word in ("--cap-add", capability)),
        *("--ulimit", f"memlock={memory}:{memory}", "--ulimit", f"nofile={files}:{files}"),
        *(word for name, value in sorted(environment.items()) for word in ("--env", f"{name}={value}")),
        *(word for mount in request["mounts"] for word in ("--volume", _volume(mount))),
        *("--volume", f"{program}:{_INSIDE}:ro", "--entrypoint", "python3", request["image"], _INSIDE),
    ]


def _volume(mount: dict[str, Any]) -> str:
    return f"{mount['source']}:{mount['target']}{':ro' if mount['read_only'] else ''}"
