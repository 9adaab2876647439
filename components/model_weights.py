"""The weights of a model, or of its drafter, on every node that runs a rank."""

import pulumi

from components.node import Node
from components.task import answer_of, task
from spec.release import WeightsPlan


class ModelWeights(pulumi.ComponentResource):
    """Copies the weights to all nodes, each with a receipt.

    Attributes:
        plan: what is copied.
        on_node: the command that copied them, by node.
        manifest: hash of the manifest that the node's receipt vouches for, by node.
    """

    def __init__(self, name: str, plan: WeightsPlan, nodes: dict[str, Node], opts: pulumi.ResourceOptions) -> None:
        """Declares one command a node."""
        super().__init__("gb10-serving:weights:ModelWeights", name, None, opts)
        self.plan = plan
        request = plan.model_dump(mode="json", include={"revision", "repository", "source", "folder"})
        self.on_node = {
            node_name: task(
                f"{name}-{node_name}",
                "weights",
                {**node.request, **request},
                parent=self,
                depends_on=[node.reached],
            )
            for node_name, node in nodes.items()
        }
        self.manifest = {node_name: answer_of(command)["manifest"] for node_name, command in self.on_node.items()}
        self.register_outputs({})
