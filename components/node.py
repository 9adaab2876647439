"""One node: the Docker provider that talks to it and the proof that it can be reached."""

from typing import Any

import pulumi
import pulumi_docker as docker

from components.task import task
from spec.party import party_of
from spec.release import NodePlan


class Node(pulumi.ComponentResource):
    """A node of the deployment.

    The node's name is part of every logical name below it, so that moving a rank deletes on the old node and creates on
    the new one instead of pointing resources at another machine (shared/facts/pulumi.md A1).

    Attributes:
        docker: provider for everything that runs on the node.
        reached: the command that found the node answering; whatever needs the node depends on it.
        request: what every task on this node carries.
        party: what a transfer between nodes needs to know of it.
    """

    def __init__(self, name: str, plan: NodePlan, storage_folder: str, opts: pulumi.ResourceOptions) -> None:
        """Declares the provider and the first contact of the node `plan`."""
        super().__init__("gb10-serving:node:Node", name, None, opts)
        self.name, self.plan = name, plan
        self.request: dict[str, Any] = {
            "connection": plan.connection.model_dump(mode="json"),
            "storage_folder": storage_folder,
        }
        self.party = party_of(plan, storage_folder).model_dump(mode="json")
        self.docker = docker.Provider(
            f"{name}-docker",
            host=plan.connection.docker_host,
            ssh_opts=list(plan.connection.ssh_options()),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.reached = task(f"{name}-reached", "node-facts", self.request, parent=self)
        self.register_outputs({})
