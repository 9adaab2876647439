"""`fleet lab`: the virtual fabric and the stack on it, from nothing to a real answer."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import httpx
import typer

from lab import fabric
from lab.parts import make_parts
from ops.environment import environment_of, has_stacks, pulumi_environment
from ops.errors import OperationError
from ops.places import PROJECT
from ops.progress import Report, progress
from ops.pulumi import run_pulumi
from ops.remote import run_on_node
from ops.stack_state import ensure_stack, forget_stack, known_stacks, release_dead_lock, resources
from ops.stacks import CATALOG, planned, stacks
from ops.toolchain import ensure_toolchain
from spec.catalog import read_stack
from spec.release import Release

FABRIC = "lab"


def lab_up(nodes: int | None, link_gbit: float | None, stack: str | None) -> None:
    """Makes everything that the lab needs, then brings `stack` up and asks it a question.

    Args:
        nodes: the first so many of the cluster; none makes two, or as many as the stack needs.
        link_gbit: what each node may send on each rail; no limit if absent.
        stack: what is brought up; nothing if absent.

    Raises:
        LabError, ToolchainError, OperationError: a part could not be made, or the stack did not come up.
    """
    cluster = CATALOG.cluster(FABRIC)
    release = planned(stack) if stack else None
    needed = list(release.nodes) if release else []
    names = list(cluster.nodes)
    wanted = names[: nodes or max([2, *(names.index(name) + 1 for name in needed if name in names)])]
    _refuse_too_few_nodes(wanted, needed, nodes, len(names))
    with progress("lab up") as report:
        variables, tree = _make_parts(report)
        fabric.up(FABRIC, cluster, nodes=wanted, link_gbit=link_gbit, binds=[(tree, "/opt/vllm")], report=report)
        if release:
            _forget_what_is_gone(release, variables, report)
    if release:
        _serve(release, variables)


def lab_down() -> None:
    """Removes the fabric, then what the backend still says of stacks that ran on it.

    Raises:
        LabError: something could not be removed.
    """
    with progress("lab down") as report:
        fabric.down(FABRIC, report=report)
        if not has_stacks():
            return
        variables = pulumi_environment(report)
        for stack in sorted(_lab_stacks() & known_stacks(variables)):
            release_dead_lock(stack, variables, report)
            forget_stack(stack, variables)


def lab_status(as_json: bool) -> None:
    """Prints the state of every node of the lab's cluster."""
    statuses = fabric.status(FABRIC, CATALOG.cluster(FABRIC))
    if as_json:
        typer.echo(json.dumps([asdict(status) for status in statuses], indent=2))
        return
    for status in statuses:
        speed = f"{status.link_gbit:g} Gbit/s" if status.link_gbit else "unlimited" if status.running else "-"
        typer.echo(
            f"{status.name:<8} {status.management_address:<16} running {_yes(status.running)}  "
            f"ssh {_yes(status.ssh_answers)}  docker {_yes(status.docker_answers)}  link {speed}"
        )


def ask(release: Release, prompt: str) -> str:
    """Asks the router, or the head of the first group, one question and returns its answer.

    Raises:
        OperationError: there is no answer.
    """
    group, router = release.groups[0], release.router
    node, port = (router.node, router.port) if router else (group.ranks[0].node, group.port)
    address = f"http://{release.nodes[node].connection.address}:{port}"
    body = {
        "model": group.served_name,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": 64,
    }
    try:
        response = httpx.post(
            f"{address}/v1/chat/completions", json=body, timeout=60, trust_env=False
        ).raise_for_status()
    except httpx.HTTPError as error:
        raise OperationError(f"{address} does not answer: {error}") from None
    return response.json()["choices"][0]["message"]["content"]


def _refuse_too_few_nodes(wanted: list[str], needed: list[str], asked: int | None, described: int) -> None:
    if asked and asked > described:
        raise OperationError(f"--nodes {asked}: catalog/clusters/lab.yaml describes {described} nodes; add more there")
    if missing := [name for name in needed if name not in wanted]:
        raise OperationError(f"the stack needs {', '.join(missing)} too, and the lab gets {', '.join(wanted)}")


def _make_parts(report: Report) -> tuple[dict[str, str], Path]:
    """Makes engine, vLLM with the model, and images side by side; what is there already costs nothing."""
    chain = CATALOG.chain(str(CATALOG.image("lab").chain), "catalog/images/lab.yaml").description
    with ThreadPoolExecutor(2) as pool:
        toolchain = pool.submit(ensure_toolchain, report)
        parts = pool.submit(make_parts, chain, "lab", CATALOG.model("lab"), report)
        return environment_of(toolchain.result()), parts.result().tree


def _forget_what_is_gone(release: Release, variables: dict[str, str], report: Report) -> None:
    """Drops the state of a stack whose nodes were made anew since: nothing that it says is there any more."""
    release_dead_lock(release.stack, variables, report)
    if not resources(release.stack, variables):
        return
    asked = {"reference": release.image.reference}
    images = [
        run_on_node(release.nodes[node].connection, release.storage_folder, "image-identity", asked)["identity"]
        for node in release.rank_nodes
    ]
    if not any(images):
        report(f"the nodes of stack {release.stack} are new: its old state is dropped")
        forget_stack(release.stack, variables)


def _serve(release: Release, variables: dict[str, str]) -> None:
    ensure_stack(release.stack, variables)
    code = run_pulumi(["up", "--yes", "--skip-preview", "--stack", release.stack], variables)
    if code:
        raise OperationError(f"`pulumi up --stack {release.stack}` failed, see above; the nodes are still there")
    question = release.groups[0].probes[0].prompt
    typer.echo(f"\n{question}\n{ask(release, question)}")


def _lab_stacks() -> set[str]:
    return {name for name in stacks() if read_stack(PROJECT, name).get("cluster") == FABRIC}


def _yes(value: bool) -> str:
    return "yes" if value else "no"
