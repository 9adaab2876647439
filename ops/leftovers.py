"""Removes a rank's container that an interrupted `up` made and Pulumi does not know of."""

import asyncio

import pulumi

from ops.errors import OperationError
from ops.remote import run_on_node
from spec.release import Release


def leftover_hook(release: Release) -> pulumi.ResourceHook:
    """Returns the hook that runs before a rank's container is created.

    An `up` that is killed while Docker creates a container leaves it on the node and not in the state, and the next one
    would fail on its name (shared/facts/engine.md 2.11). Only a container with this stack's label is removed.
    """
    by_container = {rank.container: rank.node for group in release.groups for rank in group.ranks}

    async def remove(arguments: pulumi.ResourceHookArgs) -> None:
        container = (arguments.new_inputs or {})["name"]
        connection = release.nodes[by_container[container]].connection
        try:
            await asyncio.to_thread(
                run_on_node,
                connection,
                release.storage_folder,
                "remove-rank",
                {"container": container, "stack": release.stack},
            )
        except OperationError as error:
            raise pulumi.RunError(str(error)) from None

    return pulumi.ResourceHook("remove-leftover-rank", remove)
