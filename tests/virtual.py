"""The fabric of the tests and a project of its own on it: real nodes, real engine, real providers."""

import contextlib
import ipaddress
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from lab.docker_engine import existing_engine
from lab.keys import host_key, public_line
from lab.node import container_name
from ops.places import cache_folder
from ops.remote import ssh_command
from spec.catalog import STACK_KEY, Catalog
from spec.cluster import Cluster
from spec.connection import connection_to
from spec.plan import plan_release
from tests.checkpoints import checkpoint, write_flat

PROJECT = Path(__file__).parents[1]
FABRIC = os.environ.get("GB10_SERVING_TEST_FABRIC", "test")
"""Another name, with `GB10_SERVING_TEST_SUBNETS`, lets a second run test beside the first, as `./fleet test` does."""

_MANAGEMENT, _RAIL = (
    ipaddress.IPv4Network(text)
    for text in os.environ.get("GB10_SERVING_TEST_SUBNETS", "198.51.100.128/27 198.51.100.160/27").split()
)
_BEFORE_FIRST = min(11, _MANAGEMENT.num_addresses - 7)
"""Addresses before the first node's; small networks have fewer to spare."""

NODES = tuple(f"test-{number}" for number in range(1, 5))
STORAGE = "/var/lib/gb10-serving"
CHEAP_ENGINE = Path(__file__).parent / "engine" / "cheap_engine"


def cluster_data(identity_file: Path) -> dict[str, Any]:
    """Returns the cluster of the tests as a YAML file says it: beside, and apart from, the one of `./fleet lab up`."""
    return {
        "hardware": "virtual",
        "ssh": {"identity_file": str(identity_file), "connect_timeout_seconds": 5},
        "limits": {"open_files": 20000, "locked_memory_bytes": 8388608, "shared_memory_bytes": 1 << 30},
        "virtual_fabric": {"management_subnet": str(_MANAGEMENT), "rail_subnets": [str(_RAIL)]},
        "nodes": {
            name: {
                "management_address": str(_MANAGEMENT[_BEFORE_FIRST + number]),
                "host_key": public_line(host_key(name)),
                "switch": "virtual",
                "rails": [{"address": str(_RAIL[_BEFORE_FIRST + number]), "interface": "rail0"}],
            }
            for number, name in enumerate(NODES, start=1)
        },
    }


CHEAP_IMAGE = {
    "entrypoint": ["python3", "/opt/cheap/server.py"],
    "environment": {},
    "mounts": [{"source": "/opt/cheap", "target": "/opt/cheap"}],
}
"""What the cheap engine's image has otherwise than the lab's."""


def cheap_deployment(*nodes: str) -> dict[str, Any]:
    """Returns a deployment whose ranks are the cheap engine, the head first."""
    return {
        "cluster": "test",
        "image": "cheap",
        "model": "cheap",
        "groups": {"main": list(nodes)},
        "fabric": {"kind": "virtual"},
        "engine": {"max_model_len": 512, "max_num_seqs": 4},
        "memory": {"required_bytes": 64 << 20},
        "readiness": {"start_timeout_seconds": 120, "answer_timeout_seconds": 10},
        "stop_grace_seconds": 2,
    }


@dataclass(frozen=True)
class Step:
    """One thing that the engine did: operation and logical name, in the order in which it was finished."""

    operation: str
    name: str


@dataclass(frozen=True)
class Run:
    """What one `pulumi` command printed, how it ended and what the engine did."""

    code: int
    output: str
    steps: list[Step]

    def position(self, operation: str, name: str) -> int:
        """Returns when this step was finished; fails the test if it was not."""
        assert Step(operation, name) in self.steps, f"{operation} of {name} did not happen\n{self.output}"
        return self.steps.index(Step(operation, name))

    def changed(self) -> set[str]:
        """Returns the logical names that were not left as they are."""
        return {step.name for step in self.steps if step.operation not in ("same", "read")}


class Project:
    """A folder with this project's program, a catalogue of its own and stacks of its own."""

    def __init__(self, folder: Path, catalog: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self.api_key: str | None = None
        self.catalog = Catalog(catalog)
        self.variables = {**os.environ, **variables, "PULUMI_BACKEND_URL": f"file://{folder / 'state'}"}
        self._marker = f"PULUMI_BACKEND_URL=file://{folder / 'state'}".encode()
        (folder / "state").mkdir(parents=True)
        for name in ("__main__.py", "Pulumi.yaml", "spec", "components", "ops", "runtime", ".venv"):
            (folder / name).symlink_to(PROJECT / name)
        (folder / "catalog").symlink_to(catalog)
        shutil.copytree(catalog.parent / "patches", folder / "patches")

    @property
    def cluster(self) -> Cluster:
        return self.catalog.cluster("test")

    def image_reference(self, image: str = "cheap") -> str:
        """Returns the tag of the image that the cheap deployment's ranks run."""
        deployment = cheap_deployment(NODES[0]) | {"image": image}
        return plan_release("x", deployment, Catalog(self.folder / "catalog")).image.reference

    def write(self, stack: str, deployment: dict[str, Any], comment: str = "") -> None:
        """Writes the stack file, keeping the salt that `stack init` put there, and secrets."""
        path = self.folder / f"Pulumi.{stack}.yaml"
        before = self._stack_file(path)
        salt = {key: value for key, value in before.items() if key == "encryptionsalt"}
        config = {**before.get("config", {}), STACK_KEY: deployment}
        path.write_text(f"{comment}\n" + yaml.safe_dump({**salt, "config": config}))
        if not salt:
            self.pulumi("stack", "init", stack, "--no-select")

    @staticmethod
    def _stack_file(path: Path) -> dict[str, Any]:
        return yaml.safe_load(path.read_text()) if path.exists() else {}

    def start(self, *arguments: str, events: Path | None = None) -> "subprocess.Popen[str]":
        """Starts `pulumi`, in a process group of its own."""
        log = ("--event-log", str(events)) if events else ()
        return subprocess.Popen(
            ["pulumi", *arguments, "--non-interactive", *log],
            cwd=self.folder,
            env={**self.variables, "PULUMI_DEBUG_COMMANDS": "true"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def pulumi(self, *arguments: str) -> Run:
        """Runs `pulumi` to its end."""
        with tempfile.TemporaryDirectory() as folder:
            events = Path(folder) / "events" if arguments[0] in ("up", "preview", "destroy") else None
            process = self.start(*arguments, events=events)
            output, _ = process.communicate(timeout=900)
            return Run(process.returncode, output, _steps(events) if events else [])

    def up(self, stack: str, deployment: dict[str, Any] | None = None) -> Run:
        """Writes the stack file if a deployment is given and runs `up`."""
        if deployment is not None:
            self.write(stack, deployment)
        return self.pulumi("up", "--yes", "--skip-preview", "--stack", stack)

    def preview(self, stack: str) -> Run:
        return self.pulumi("preview", "--stack", stack)

    def preview_of(self, stack: str, deployment: dict[str, Any]) -> Run:
        """Writes the stack file and previews it."""
        self.write(stack, deployment)
        return self.preview(stack)

    def destroy(self, stack: str) -> Run:
        return self.pulumi("destroy", "--yes", "--skip-preview", "--stack", stack)

    def containers(self, node: str) -> list[str]:
        """Returns all containers on a node, running or not."""
        return self.on_node(node, "docker ps --all --format '{{.Names}}'").split()

    def on_node(self, node: str, text: str, check: bool = True) -> str:
        """Runs a shell text on a node over ssh."""
        result = subprocess.run(
            ssh_command(connection_to(self.cluster, node), text),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert not check or result.returncode == 0, result.stderr
        return result.stdout

    def end_processes(self) -> None:
        """Ends what a killed `pulumi` left running: its plugins and its program, known by this project's backend."""
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                ours = self._marker in path.read_bytes().split(b"\0")
            except OSError:
                continue
            if ours:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(path.parent.name), signal.SIGKILL)

    def clean_nodes(self) -> None:
        """Removes every container and claim from the nodes, so that the next test starts on free ones."""
        for node in NODES:
            self.on_node(
                node,
                "docker rm --force $(docker ps --all --quiet) 2>/dev/null; "
                f"rm -rf {STORAGE}/claim.json {STORAGE}/ranks {STORAGE}/routers",
            )

    def ask(self, node: str, prompt: str = "What is 17 x 23?", port: int = 8000) -> str:
        """Asks the head on a node one question."""
        address = self.cluster.nodes[node].management_address
        body = {
            "model": "lab",
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": 200,
        }
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        response = httpx.post(
            f"http://{address}:{port}/v1/chat/completions", json=body, headers=headers, timeout=60, trust_env=False
        )
        return response.raise_for_status().json()["choices"][0]["message"]["content"]

    def answers(self, node: str) -> bool:
        """Tells whether the head on a node answers right now."""
        try:
            return self.ask(node) == "17 x 23 = 391"
        except (httpx.HTTPError, KeyError):
            return False

    def status(self, node: str, container: str) -> dict[str, Any]:
        """Returns the status that a rank's supervisor left on its node; empty before it has one."""
        text = self.on_node(node, f"cat {STORAGE}/ranks/{container}/record/status.json 2>/dev/null", check=False)
        return json.loads(text) if text else {}


def _steps(events: Path) -> list[Step]:
    found = []
    for line in events.read_text().splitlines() if events.exists() else ():
        event = json.loads(line)
        metadata = (event.get("resOutputsEvent") or event.get("resourceOutputsEvent") or {}).get("metadata") or (
            event.get("resOpFailedEvent") or {}
        ).get("metadata")
        if metadata:
            operation = f"{metadata['op']} failed" if "resOpFailedEvent" in event else metadata["op"]
            found.append(Step(operation, metadata["urn"].rsplit("::", 1)[-1]))
    return found


def make_catalog(folder: Path, identity_file: Path) -> Path:
    """Makes a catalogue for the tests: this project's entries, the tests' cluster, the cheap images and their model.

    The image `cheap` is the lab's after its first step, `patched` after all of them.
    """
    shutil.copytree(PROJECT / "catalog", folder)
    patches = folder.parent / "patches"
    shutil.copytree(PROJECT / "patches", patches)
    chain = yaml.safe_load((patches / "lab" / "chain.yaml").read_text())
    (patches / "cheap").mkdir()
    (patches / "cheap" / "chain.yaml").write_text(yaml.safe_dump(chain | {"steps": chain["steps"][:1]}))
    model = yaml.safe_load((folder / "models" / "lab.yaml").read_text())
    model["trained"]["seed"] = 2
    model["probes"] = [
        {"prompt": "What is 17 x 23?", "answer": "391"},
        {"prompt": "Who are you?", "answer": "A cheap engine.", "match": "exact"},
    ]
    image = yaml.safe_load((folder / "images" / "lab.yaml").read_text()) | CHEAP_IMAGE
    entries = {
        "clusters/test.yaml": cluster_data(identity_file),
        "images/cheap.yaml": image | {"chain": "cheap"},
        "images/patched.yaml": image,
        "models/cheap.yaml": model,
    }
    for name, data in entries.items():
        (folder / name).write_text(yaml.safe_dump(data))
    _write_cheap_weights(str(Catalog(folder).model("cheap").revision))
    return folder


def _write_cheap_weights(revision: str) -> None:
    """Puts a small checkpoint where the weights of the cheap model are looked for: its engine does not read them."""
    folder = cache_folder() / "models" / revision
    if not folder.is_dir():
        write_flat(folder, checkpoint(bytes_each=1 << 20))


@contextlib.contextmanager
def paused(node: str) -> Iterator[None]:
    """Makes a node hang: it neither answers nor refuses."""
    engine = existing_engine()
    assert engine is not None
    engine.docker("pause", container_name(FABRIC, node), what="pause a node")
    try:
        yield
    finally:
        engine.docker("unpause", container_name(FABRIC, node), what="let a node go on")


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Waits for a condition; fails the test when it does not come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.2)
