"""Every stack of the project in a preview of the real engine, in a network namespace without any network."""

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ops.stacks import planned, stacks
from tests.virtual import PROJECT, Project

# The engine and its plugins talk over the loopback interface, which a new namespace has switched off.
IN_EMPTY_NETWORK = """
import fcntl, os, socket, struct, sys
up = 0x1
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    fcntl.ioctl(control, 0x8914, struct.pack("16sh14x", b"lo", up))
try:
    socket.create_connection(("198.51.100.1", 22), timeout=2)
except OSError as error:
    assert error.errno == 101, error
else:
    sys.exit("there is a network")
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def offline(tmp_path: Path, pulumi_variables: dict[str, str]) -> Project:
    """A copy of this project with its own backend; no nodes."""
    project = Project(tmp_path / "project", PROJECT / "catalog", pulumi_variables)
    for stack in stacks():
        shutil.copy(PROJECT / f"Pulumi.{stack}.yaml", project.folder)
    return project


def preview_without_network(project: Project, stack: str) -> str:
    """Initialises and previews a stack and returns what the preview printed."""
    if "encryptionsalt" not in (project.folder / f"Pulumi.{stack}.yaml").read_text():
        assert project.pulumi("stack", "init", stack, "--no-select").code == 0
    else:
        project.pulumi("stack", "init", stack, "--no-select")
    command = ["pulumi", "preview", "--stack", stack, "--non-interactive"]
    result = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", IN_EMPTY_NETWORK, *command],
        cwd=project.folder,
        env=project.variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("stack", stacks())
def test_a_preview_needs_no_network_and_shows_each_node(offline: Project, stack: str) -> None:
    output = preview_without_network(offline, stack)
    release = planned(stack)
    created = re.findall(r"^ \+  (\S+) (\S+) create", output, re.MULTILINE)
    assert f'"{release.hash}"' in output, "Pulumi hands the program something else than the stack file says"
    kinds = Counter(kind for kind, _ in created)
    ranks = [rank for group in release.groups for rank in group.ranks]
    assert kinds["docker:index:Container"] == len(ranks) + bool(release.router)
    assert kinds["pulumi:providers:docker"] == len(release.nodes)
    for node in release.nodes:
        of_node = [
            name
            for _, name in created
            if re.search(rf"(^|-){re.escape(node)}(-|$)", name) and not name.startswith("router")
        ]
        # Provider, contact and the component; of a node with a rank also image, weights of model and drafter,
        # preflight, claim, secrets and the rank.
        assert len(of_node) == (8 + len(release.weights) if node in release.rank_nodes else 3), of_node


def test_a_wrong_stack_file_is_told_by_one_error(offline: Project) -> None:
    path = offline.folder / "Pulumi.lab.yaml"
    path.write_text(path.read_text().replace("max_num_seqs: 8", "max_num_sequences: 8"))
    offline.pulumi("stack", "init", "lab", "--no-select")
    run = offline.preview("lab")
    assert run.code != 0
    assert "engine/max_num_sequences: 8\n        this key is not known here" in run.output
    assert "Traceback" not in run.output
    assert "unhandled error" not in run.output
