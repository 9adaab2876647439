"""Prepares the node just before a rank's container is created: a hook that the program passes in."""

import asyncio

import pulumi

from ops.claims import operator
from ops.errors import OperationError
from ops.remote import run_on_node
from spec.release import GroupPlan, RankPlan, Release


def preparation_hook(release: Release) -> pulumi.ResourceHook:
    """Returns the hook that runs before a rank's container is created.

    It writes the generation into the node's claim, points the rank's folder at the runtime of this checkout, notes
    which image the node holds, and forgets what an earlier container of this rank remembered. An `up` that is killed
    while Docker creates a container leaves it on the node and not in the state, and the next one would fail on its name
    (shared/facts/engine.md 2.11): such a container is removed if it carries this stack's label. Its peers need no help:
    they see that it went, and gather again.
    """
    ranks = {rank.container: (group, rank) for group in release.groups for rank in group.ranks}

    async def prepare(arguments: pulumi.ResourceHookArgs) -> None:
        try:
            await asyncio.to_thread(_prepare, release, *ranks[(arguments.new_inputs or {})["name"]])
        except OperationError as error:
            raise pulumi.RunError(str(error)) from None

    return pulumi.ResourceHook("prepare-rank", prepare)


def router_hook(release: Release) -> pulumi.ResourceHook:
    """Returns the hook that runs before the router's container is created: removes what a killed `up` left."""

    async def clear(_: pulumi.ResourceHookArgs) -> None:
        try:
            await asyncio.to_thread(_clear_router, release)
        except OperationError as error:
            raise pulumi.RunError(str(error)) from None

    return pulumi.ResourceHook("clear-router", clear)


def _clear_router(release: Release) -> None:
    router = release.router
    assert router is not None
    request = {"container": router.container, "stack": release.stack}
    run_on_node(release.nodes[router.node].connection, release.storage_folder, "clear-router", request)


def _prepare(release: Release, group: GroupPlan, rank: RankPlan) -> None:
    request = {
        "storage_folder": release.storage_folder,
        "container": rank.container,
        "stack": release.stack,
        "image": release.image.reference,
        "group": group.name,
        "generation": group.hash,
        "by": operator(),
    }
    run_on_node(release.nodes[rank.node].connection, release.storage_folder, "prepare-rank", request)
