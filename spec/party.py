"""A node as a transfer between nodes knows it."""

from spec.base import Strict
from spec.connection import Connection
from spec.release import NodePlan


class Party(Strict):
    """A node that takes part in a transfer; as plain data it is what a request carries of it.

    Attributes:
        node: its name, for messages.
        connection: how to log in; none is this controller.
        storage_folder: our folder on the node, where the runtime is put.
        address: fabric address that the node binds to and is reached at.
        switch: the switch that it hangs on.
    """

    node: str
    connection: Connection | None
    storage_folder: str
    address: str
    switch: str


def party_of(plan: NodePlan, storage_folder: str) -> Party:
    """Returns a node of a Release as transfers know it; its address is that of its first rail in use."""
    return Party(
        node=plan.connection.node,
        connection=plan.connection,
        storage_folder=storage_folder,
        address=next(iter(plan.fabric.values())),
        switch=plan.switch,
    )
