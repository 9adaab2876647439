"""Hands nodes from deployments that serve to another one, and back if that one does not come up.

What an interrupted switch needs in order to go on lies in the stacks themselves: the stack file says which deployment
shall run (`active`), the state which Release was ready last. So any controller of the same backend can run it again,
and no record of its own can disagree with them.
"""

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ops.chosen_release import RELEASE_FILE
from ops.errors import OperationError
from ops.giving_up import GivenUp, give_up, holds_nodes, nodes_in, why_unreachable
from ops.places import PROJECT
from ops.progress import Report
from ops.pulumi import follow_pulumi
from ops.release_history import read_history, read_release
from ops.remote import NodeError, run_on_node
from ops.rollback import release_text_file
from ops.stack_file import is_active, set_active
from ops.stack_images import bring_image, build_image
from ops.stack_state import await_lock, ensure_stack, resources
from ops.stacks import planned
from ops.weights import bring, delivery_of
from spec.asking import preflight_checks, router_request
from spec.base import canonical_json
from spec.catalog import Catalog, refuse_unclean_file
from spec.handover import Handover, hand_over, machine_of
from spec.release import Release

_FREE_WITHIN_SECONDS = 120
"""How long memory and ports of a rank that has gone may take to be free; they lag behind its container."""

_CONTAINER = "docker:index/container:Container"


@dataclass(frozen=True)
class Giver:
    """A deployment that makes room.

    Attributes:
        stack: its name.
        release: that was ready last, or what its stack file says where none ever was.
        was_ready: whether there is a Release to go back to.
        is_active: whether its stack file lets it run now.
    """

    stack: str
    release: Release
    was_ready: bool
    is_active: bool


@dataclass(frozen=True)
class Plan:
    """What a switch does."""

    givers: tuple[Giver, ...]
    target: Release
    handover: Handover

    def as_data(self) -> dict[str, Any]:
        """Returns it as plain data, for JSON."""
        return {
            "from": [
                {"stack": one.stack, "release": one.release.hash, "was_ready": one.was_ready, "active": one.is_active}
                for one in self.givers
            ],
            "to": {"stack": self.target.stack, "release": self.target.hash},
            "nodes": [one.model_dump(mode="json") for one in self.handover.nodes],
        }


@dataclass(frozen=True)
class Brought:
    """What is on every node of the target by now.

    Attributes:
        image: `identity` and `layers` as built.
        manifests: hash of the manifest of each model and drafter by its name.
    """

    image: dict[str, Any]
    manifests: dict[str, Any]


@dataclass(frozen=True)
class Times:
    """Where the time went, in seconds: until the old ranks had gone, until the new ones ran, until they answered."""

    stop_seconds: float
    start_seconds: float
    ready_seconds: float


Outcome = Literal["done", "restored", "down"]
"""`done`: the target answers right. `restored`: it did not, and what served before does again. `down`: neither does."""


@dataclass(frozen=True)
class Result:
    """How a switch ended.

    Attributes:
        outcome: in a word.
        why: the target does not serve; none if it does.
        times: of a switch that is done.
        serving: stacks that serve now.
        down: stacks that do not come back, each with the reason.
        given_up: nodes that died meanwhile, with what is left there.
    """

    outcome: Outcome
    why: str | None = None
    times: Times | None = None
    serving: tuple[str, ...] = ()
    down: dict[str, str] = field(default_factory=dict)
    given_up: tuple[GivenUp, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Returns it as plain data, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Controller:
    """What a switch runs with.

    Attributes:
        variables: the environment of the engine.
        report: takes a line about what is done now.
        project: where the stack files are.
    """

    variables: Mapping[str, str]
    report: Report
    project: Path = PROJECT


def plan_switch(sources: Sequence[str], target: str, controller: Controller) -> Plan:
    """Reads what runs and what shall run; contacts no node.

    Raises:
        OperationError: the stacks cannot be switched so.
        SpecificationError: the target cannot work.
    """
    if target in sources or len(set(sources)) != len(sources):
        raise OperationError(f"a switch goes from some stacks to another: {', '.join(sources)} to {target}")
    refuse_unclean_file(controller.project, target)
    release = planned(target, controller.project).model_copy(update={"active": True})
    givers = tuple(_giver(stack, controller) for stack in sources)
    _refuse_rivals(givers)
    return Plan(givers, release, hand_over([one.release for one in givers], release))


def check(plan: Plan, controller: Controller) -> Brought:
    """Makes sure that the target can start once the others have gone; what serves goes on serving.

    Image and weights are brought up to date. Whatever the leaving deployments hold counts as free.

    Raises:
        OperationError: it could not start; every node's reasons are named.
    """
    release, report = plan.target, controller.report
    _refuse_held_nodes(plan)
    report(f"image {release.image.reference}")
    catalog = Catalog(controller.project / "catalog")
    built = build_image(release, lambda name: catalog.chain(name, "catalog/images"))
    bring_image(release, built)
    manifests = {}
    for weights in release.weights:
        report(f"weights {weights.name}")
        manifests[weights.name] = bring(delivery_of(release, weights), report).manifest
    brought = Brought({key: built[key] for key in ("identity", "layers")}, manifests)
    report(f"preflight on {', '.join(release.rank_nodes)}")
    if wrong := _preflights(release, brought, [one.stack for one in plan.givers]):
        raise OperationError("\n".join([f"{release.stack} could not start:", *wrong]))
    return brought


def carry_out(plan: Plan, brought: Brought, controller: Controller) -> Result:
    """Parks what serves, brings the target up to a right answer, and goes back if that fails."""
    began = time.monotonic()
    try:
        _on_all([lambda one=one: _park(one.stack, one.release, controller) for one in plan.givers])
        stopped = time.monotonic()
        _await_free(plan.target, brought, controller.report)
        started, ended = _bring_up(plan.target.stack, controller)
    except OperationError as error:
        controller.report(f"{plan.target.stack} does not serve: {error}")
        return _go_back(plan, str(error), controller)
    times = Times(stopped - began, max(0.0, started - stopped), max(0.0, ended - max(started, stopped)))
    return Result("done", times=times, serving=(plan.target.stack,))


def _giver(stack: str, controller: Controller) -> Giver:
    active = is_active(stack, controller.project)
    ready = read_history(stack, controller.variables, controller.project).ready
    if ready:
        return Giver(stack, read_release(ready[0], stack), True, active)
    if not resources(stack, controller.variables, controller.project):
        raise OperationError(f"nothing of {stack} is deployed: there is nothing to switch from")
    return Giver(stack, planned(stack, controller.project), False, active)


def _refuse_rivals(givers: Sequence[Giver]) -> None:
    """Two deployments on one machine cannot both have served, and could not both come back."""
    seen: dict[str, str] = {}
    for one in givers:
        for node in one.release.rank_nodes:
            machine = machine_of(one.release.nodes[node])
            if machine in seen:
                raise OperationError(
                    f"{seen[machine]} and {one.stack} both use {node}, so only one of them serves: name that one"
                )
            seen[machine] = one.stack


def _refuse_held_nodes(plan: Plan) -> None:
    """Finds in a second what would otherwise be said after hours of copying: a dead node, somebody else's node.

    The node that builds the image need not be free.
    """
    known = {plan.target.stack, *(one.stack for one in plan.givers)}

    def look(node: str) -> str | None:
        try:
            claim = _ask(plan.target, node, "look-at-claim", {})["claim"]
        except NodeError as error:
            return str(error)
        if claim is None or claim["stack"] in known or node not in plan.target.rank_nodes:
            return None
        return (
            f"{node} is held by {claim['stack']}, group {claim['group']}, since {claim['since']}: name it as one to "
            f"switch from (`./fleet switch {claim['stack']} ... {plan.target.stack}`), or choose other nodes"
        )

    if wrong := [text for text in _on_all([lambda node=node: look(node) for node in plan.target.nodes]) if text]:
        raise OperationError("\n".join(wrong))


def _preflights(release: Release, brought: Brought, leaving: list[str]) -> list[str]:
    """Returns what stands in the way of ranks and router, by node, as `up` will find it."""

    def look(node: str, verb: str, checks: dict[str, Any]) -> str | None:
        try:
            _ask(release, node, verb, {**checks, "leaving": leaving, "controller_seconds": time.time()})
        except NodeError as error:
            return str(error)
        return None

    asked = [
        (rank.node, "preflight", preflight_checks(release, group, rank, brought.image, brought.manifests))
        for group in release.groups
        for rank in group.ranks
    ]
    if release.router:
        asked.append((release.router.node, "router-preflight", router_request(release, release.router)))
    return [text for text in _on_all([lambda one=one: look(*one) for one in asked]) if text]


def _await_free(release: Release, brought: Brought, report: Report) -> None:
    """Waits until nodes that were just given up are really free; memory lags behind a removed container."""
    end = time.monotonic() + _FREE_WITHIN_SECONDS
    while wrong := _preflights(release, brought, []):
        if time.monotonic() > end:
            raise OperationError("\n".join(["the nodes are not free although nothing runs there any more:", *wrong]))
        report(f"not free yet: {wrong[0].splitlines()[0]}")
        time.sleep(2)


def _park(stack: str, release: Release, controller: Controller) -> None:
    """Takes the ranks and claims of a deployment down as it was deployed; its stack file says so first."""
    set_active(stack, False, controller.project)
    controller.report(f"park {stack}")
    text = canonical_json(release.model_copy(update={"active": False}).model_dump(mode="json"))
    _deploy(stack, text, controller)


def _bring_up(stack: str, controller: Controller) -> tuple[float, float]:
    """Deploys what the stack file says; returns when its ranks ran and when they had answered right."""
    set_active(stack, True, controller.project)
    ensure_stack(stack, controller.variables, controller.project)
    controller.report(f"bring {stack} up")
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events"
        offset = time.time() - time.monotonic()
        _deploy(stack, None, controller, "--event-log", str(events))
        ended = time.monotonic()
        last = _last_rank_at(events)
    return (min(ended, last - offset) if last else ended), ended


def _last_rank_at(events: Path) -> float | None:
    """Returns when the last rank was created, in seconds since 1970; none if none had to be."""
    found: list[float] = []
    for line in events.read_text().splitlines() if events.exists() else ():
        event = json.loads(line)
        metadata = (event.get("resOutputsEvent") or {}).get("metadata") or {}
        if metadata.get("type") == _CONTAINER and metadata.get("op") in ("create", "create-replacement"):
            found.append(float(event["timestamp"]))
    return max(found, default=None)


def _go_back(plan: Plan, why: str, controller: Controller) -> Result:
    """Parks the target and brings every deployment that made room back to its Release that was ready last."""
    down: dict[str, str] = {}
    given_up: list[GivenUp] = []
    try:
        given_up = _withdraw(plan.target, controller)
    except OperationError as error:
        down[plan.target.stack] = f"could not be parked: {error}"

    def restore(giver: Giver) -> str | None:
        try:
            _restore(giver, controller)
        except OperationError as error:
            return str(error)
        return None

    reasons = _on_all([lambda one=one: restore(one) for one in plan.givers])
    down |= {one.stack: text for one, text in zip(plan.givers, reasons, strict=True) if text}
    serving = tuple(one.stack for one in plan.givers if one.stack not in down)
    all_back = len(serving) == len(plan.givers)
    return Result("restored" if all_back else "down", why, None, serving, down, tuple(given_up))


def _withdraw(release: Release, controller: Controller) -> list[GivenUp]:
    """Parks a target that does not serve; nodes that died meanwhile are given up, or the others could not be freed."""
    set_active(release.stack, False, controller.project)
    await_lock(release.stack, controller.variables, controller.report)
    found = resources(release.stack, controller.variables, controller.project, show_secrets=True)
    if not holds_nodes(found):
        return []
    nodes = nodes_in(found)
    reasons = _on_all([lambda place=place: why_unreachable(*place) for place in nodes.values()])
    given_up: list[GivenUp] = []
    if dead := [node for node, reason in zip(nodes, reasons, strict=True) if reason]:
        controller.report(f"{', '.join(dead)} does not answer: {release.stack} gives it up")
        given_up = give_up(release.stack, dead, controller.variables, controller.project)
    _park(release.stack, release, controller)
    return given_up


def _restore(giver: Giver, controller: Controller) -> None:
    if not giver.was_ready:
        raise OperationError(f"no Release of {giver.stack} was ever ready: there is nothing to go back to")
    set_active(giver.stack, True, controller.project)
    controller.report(f"bring {giver.stack} back to release {giver.release.hash[:16]}")
    ready = read_history(giver.stack, controller.variables, controller.project).ready[0]
    _deploy(giver.stack, ready.release, controller)


def _deploy(stack: str, release: str | None, controller: Controller, *options: str) -> None:
    """Runs `up`, of a given Release or of what the stack file says.

    Raises:
        OperationError: it failed; the last lines say why.
    """
    await_lock(stack, controller.variables, controller.report)
    variables = {**controller.variables, "PULUMI_DEBUG_COMMANDS": "true"}
    lines: list[str] = []

    def tell(line: str) -> None:
        if line.strip():
            lines.append(line)
            controller.report(f"{stack} | {line}")

    arguments = ["up", "--yes", "--skip-preview", "--stack", stack, *options]
    if release is None:
        code = follow_pulumi(arguments, variables, tell, controller.project)
    else:
        with release_text_file(release) as path:
            code = follow_pulumi(arguments, {**variables, RELEASE_FILE: str(path)}, tell, controller.project)
    if code:
        raise OperationError(f"`pulumi up --stack {stack}` failed:\n" + _diagnostics(lines))


def _diagnostics(lines: list[str]) -> str:
    """Returns what Pulumi says of errors, or the last lines where it says nothing."""
    start = next((number for number, line in enumerate(lines) if line.startswith("Diagnostics:")), None)
    return "\n".join(lines[start + 1 :] if start is not None else lines[-20:])


def _ask(release: Release, node: str, verb: str, request: dict[str, Any]) -> Any:
    asked = {"storage_folder": release.storage_folder, **request}
    return run_on_node(release.nodes[node].connection, release.storage_folder, verb, asked)


def _on_all(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Does all jobs side by side; if some fail, the first error is raised once all have ended."""
    with ThreadPoolExecutor(max(1, len(jobs))) as pool:
        return [future.result() for future in [pool.submit(job) for job in jobs]]
