"""How a preview grows with the cluster: time and memory for pairs of a pool on so many nodes, against the smallest.

`python -m bench.preview [--nodes 4 16 64] [--rounds 3]`: the real engine, no node (a preview needs none), all sizes in
one run. The middle of the rounds is shown; memory is the most that the processes of a preview held together, what they
share counted once for each.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml

from lab.keys import host_key, public_line
from ops.environment import pulumi_environment
from ops.places import PROJECT
from spec.catalog import STACK_KEY, read_stack

_STACK, _CLUSTER, _TEMPLATE = "pool", "bench", "qwen-pool"
_SAMPLE_SECONDS = 0.02
_MIB = 1 << 20


def write_project(folder: Path, count: int) -> None:
    """Makes a project like this one, with a stack of pairs over `count` nodes in a cluster of its own."""
    for name in ("__main__.py", "Pulumi.yaml", "spec", "components", "ops", "runtime", "patches", ".venv"):
        (folder / name).symlink_to(PROJECT / name)
    shutil.copytree(PROJECT / "catalog", folder / "catalog")
    deployment = read_stack(PROJECT, _TEMPLATE)
    cluster = yaml.safe_load((folder / "catalog" / "clusters" / f"{deployment['cluster']}.yaml").read_text())
    template = next(iter(cluster["nodes"].values()))
    names = [f"node-{number}" for number in range(count)]
    cluster["nodes"] = {name: _node(template, number) for number, name in enumerate(names)}
    (folder / "catalog" / "clusters" / f"{_CLUSTER}.yaml").write_text(yaml.safe_dump(cluster))
    deployment["cluster"] = _CLUSTER
    deployment["groups"] = {f"pair-{first // 2}": names[first : first + 2] for first in range(0, count, 2)}
    deployment["router"] = {"node": names[0]}
    (folder / f"Pulumi.{_STACK}.yaml").write_text(yaml.safe_dump({"config": {STACK_KEY: deployment}}))


def _node(template: Mapping[str, object], number: int) -> dict[str, object]:
    rails = [
        {"interface": interface, "hca": hca, "address": f"203.0.113.{first + number}"}
        for interface, hca, first in (("enp1s0f0np0", "rocep1s0f0", 1), ("enP2p1s0f0np0", "roceP2p1s0f0", 129))
    ]
    key = public_line(host_key(f"bench-{number}"))
    return {**template, "management_address": f"192.0.2.{1 + number}", "host_key": key, "rails": rails}


class Preview:
    """One preview while it runs, and the most memory that its processes held together."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.most_bytes = 0
        began = time.monotonic()
        process = subprocess.Popen(
            ["pulumi", "preview", "--stack", _STACK, "--non-interactive"],
            cwd=folder,
            env=dict(variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        watch = threading.Thread(target=self._watch, args=(process,), daemon=True)
        watch.start()
        output, _ = process.communicate()
        self.seconds = time.monotonic() - began
        watch.join()
        if process.returncode:
            raise RuntimeError(output)
        self.resources = int(next(line for line in output.splitlines() if "to create" in line).split()[1])

    def _watch(self, process: "subprocess.Popen[str]") -> None:
        while process.poll() is None:
            self.most_bytes = max(self.most_bytes, sum(map(_resident_bytes, _family(process.pid))))
            time.sleep(_SAMPLE_SECONDS)


def _family(process: int) -> Iterator[int]:
    yield process
    try:
        threads = list(Path(f"/proc/{process}/task").iterdir())
        children = [child for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return
    for child in children:
        yield from _family(int(child))


def _resident_bytes(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@contextmanager
def _project(count: int, variables: Mapping[str, str]) -> Iterator[tuple[Path, dict[str, str]]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "state").mkdir()
        write_project(folder, count)
        own = {
            **os.environ,
            **variables,
            "PULUMI_BACKEND_URL": f"file://{folder / 'state'}",
            "PULUMI_CONFIG_PASSPHRASE": "",
        }
        subprocess.run(["pulumi", "stack", "init", _STACK], cwd=folder, env=own, check=True, capture_output=True)
        yield folder, own


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    variables = pulumi_environment(print)
    base: tuple[float, float] | None = None
    for count in arguments.nodes:
        with _project(count, variables) as (folder, own):
            rounds = [Preview(folder, own) for _ in range(arguments.rounds)]
        seconds = statistics.median(one.seconds for one in rounds)
        most = statistics.median(one.most_bytes for one in rounds)
        base = base or (seconds, most)
        print(
            f"{count} nodes: {rounds[0].resources} resources, {seconds:.1f} s ({seconds / base[0]:.1f} x), "
            f"{most / _MIB:.0f} MiB ({most / base[1]:.1f} x)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
