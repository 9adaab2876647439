"""Resolves a rank's fabric just before its engine starts, waiting a bounded time for links that come up late."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runtime.fabric.addresses import InterfaceAddress, read_addresses
from runtime.fabric.leftovers import (
    baked_in,
    configuration_problems,
    environment_problems,
    notices_of,
    read_configuration_files,
)
from runtime.fabric.node import NodeFabric, read_node, table_of
from runtime.fabric.request import FabricRequest
from runtime.fabric.result import FabricError, ResolvedFabric
from runtime.fabric.rules import find_rails

_POLL_SECONDS = 1.0
_TELL_SECONDS = 5.0


@dataclass(frozen=True)
class Surroundings:
    """Where the facts of a node come from.

    Attributes:
        sysfs: root of the tree that describes its devices; not the kernel's own on the virtual fabric.
        addresses: returns its IPv4 addresses.
        configuration_files: returns the files that NCCL would read, by path.
    """

    sysfs: Path = Path("/sys")
    addresses: Callable[[], tuple[InterfaceAddress, ...]] = read_addresses
    configuration_files: Callable[[], Mapping[str, str]] = read_configuration_files


@dataclass(frozen=True)
class Patience:
    """How long to wait for what comes up late.

    Attributes:
        wait_seconds: from the first look to the last. 60 is what a seed repository gives RoCE to settle.
        clock: returns seconds that only grow.
        sleep: lets some of them pass.
        tell: takes a line of progress.
    """

    wait_seconds: float = 60.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    tell: Callable[[str], None] = print


def resolve(
    request: FabricRequest,
    process_environment: Mapping[str, str],
    surroundings: Surroundings = Surroundings(),
    patience: Patience = Patience(),
) -> ResolvedFabric:
    """Returns what the engine must be told of this node's fabric.

    Args:
        request: the rails and what the Release sets.
        process_environment: of this process: Release and image, as Docker merged them.
        surroundings: where to look.
        patience: how long to wait for a problem that may pass.

    Raises:
        FabricError: the fabric is not what the deployment asks for; every problem with its way out, and a table.
    """
    deadline = patience.clock() + patience.wait_seconds
    next_tell = patience.clock()
    while isinstance(found := _look(request, process_environment, surroundings), FabricError):
        now = patience.clock()
        if now >= deadline or not all(problem.may_pass for problem in found.problems):
            raise found
        if now >= next_tell:
            patience.tell(f"waiting up to {deadline - now:.0f} s more for the fabric: {found.problems[0].text}")
            next_tell = now + _TELL_SECONDS
        patience.sleep(min(_POLL_SECONDS, deadline - now))
    return found


def _look(
    request: FabricRequest, process_environment: Mapping[str, str], surroundings: Surroundings
) -> ResolvedFabric | FabricError:
    node = read_node(surroundings.sysfs, surroundings.addresses())
    try:
        return examine(request, node, process_environment, surroundings.configuration_files())
    except FabricError as error:
        return error


def examine(
    request: FabricRequest,
    node: NodeFabric,
    process_environment: Mapping[str, str],
    configuration_files: Mapping[str, str],
) -> ResolvedFabric:
    """Decides from plain data what `resolve` returns or raises.

    Raises:
        FabricError: with every problem found.
    """
    table = table_of(node, request.rails)
    rails, problems = find_rails(request, node)
    if problems:
        raise FabricError(problems, table)
    removed = baked_in(request, process_environment)
    fabric = ResolvedFabric(request.kind, tuple(rails), removed, notices_of(removed, rails, node), table)
    problems = [
        *environment_problems(request, rails, node),
        *configuration_problems(configuration_files, engine_environment(process_environment, fabric)),
    ]
    if problems:
        raise FabricError(problems, table)
    return fabric


def engine_environment(process_environment: Mapping[str, str], fabric: ResolvedFabric) -> dict[str, str]:
    """Returns the environment for the engine: this process's, without what the image bakes in, with what was found."""
    kept = {name: value for name, value in process_environment.items() if name not in fabric.removed}
    return {**kept, **fabric.environment}
