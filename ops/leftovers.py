"""Mends what an interrupted or failed `up` left behind, before Pulumi goes on: hooks that the program passes in.

The supervisor's gate would make both needless; until ranks have one, a rank that met a dead peer waits for it for ever.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pulumi

from ops.errors import OperationError
from ops.remote import run_on_node
from spec.release import RankPlan, Release


def leftover_hook(release: Release) -> pulumi.ResourceHook:
    """Returns the hook that runs before a rank's container is created.

    An `up` that is killed while Docker creates a container leaves it on the node and not in the state, and the next one
    would fail on its name (shared/facts/engine.md 2.11). Only a container with this stack's label is removed. Other
    ranks of its group may have met it, so they start anew.
    """
    places = {rank.container: (group, rank) for group in release.groups for rank in group.ranks}

    def mend(arguments: pulumi.ResourceHookArgs) -> None:
        group, rank = places[(arguments.new_inputs or {})["name"]]
        if _ask(release, rank, "remove-rank", {"stack": release.stack})["removed"]:
            restart(release, [other for other in group.ranks if other is not rank])

    return _hook("remove-leftover-rank", mend)


def revival_hook(release: Release) -> pulumi.ResourceHook:
    """Returns the hook that runs before a group is waited for.

    An `up` that failed on a rank that ended leaves it in the state as it is. When `up` is repeated, the group is
    started again as a whole. A rank that this very `up` started and that has ended is a failure, which is reported.
    """
    program_start = time.monotonic()
    groups = {f"{group.name}-ready": group for group in release.groups}

    def mend(arguments: pulumi.ResourceHookArgs) -> None:
        group = groups[arguments.name]
        if group.serves and any(_ended_before(release, rank, program_start) for rank in group.ranks):
            restart(release, list(group.ranks))

    return _hook("revive-ended-group", mend)


def restart(release: Release, ranks: list[RankPlan]) -> None:
    """Stops all of these ranks, lowest first, and then starts them, highest first, so that none meets a dying one.

    Raises:
        OperationError: a node cannot be asked, or its Docker refused.
    """
    for rank in ranks:
        _ask(release, rank, "stop-rank", {"grace_seconds": release.stop_grace_seconds})
    for rank in reversed(ranks):
        _ask(release, rank, "start-rank", {})


def _ended_before(release: Release, rank: RankPlan, moment: float) -> bool:
    """Whether a rank has ended that was started before a moment of this process; no two clocks are compared."""
    report = _ask(release, rank, "report-rank", {"interfaces": []})
    return report["state"] == "ended" and report["seconds_since_start"] > time.monotonic() - moment


def _ask(release: Release, rank: RankPlan, verb: str, request: dict[str, Any]) -> dict[str, Any]:
    connection = release.nodes[rank.node].connection
    return run_on_node(connection, release.storage_folder, verb, {"container": rank.container, **request})


def _hook(name: str, mend: Callable[[pulumi.ResourceHookArgs], None]) -> pulumi.ResourceHook:
    async def run(arguments: pulumi.ResourceHookArgs) -> None:
        try:
            await asyncio.to_thread(mend, arguments)
        except OperationError as error:
            raise pulumi.RunError(str(error)) from None

    return pulumi.ResourceHook(name, run)
