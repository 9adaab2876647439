"""The image of the ranks on every node that runs one."""

import pulumi

from components.node import Node
from components.task import answer_of, task
from spec.release import ImagePlan


class ModelImage(pulumi.ComponentResource):
    """Brings one image to all nodes; what each node holds is compared by layers with what was built.

    Attributes:
        on_node: the command that brought it, by node.
        content: identity and layers of the image as built.
    """

    def __init__(self, name: str, plan: ImagePlan, nodes: dict[str, Node], opts: pulumi.ResourceOptions) -> None:
        """Declares one command a node."""
        super().__init__("gb10-serving:image:ModelImage", name, None, opts)
        verb = "pull-image" if plan.pull else "send-image"
        self.on_node = {
            node_name: task(
                f"{name}-{node_name}",
                verb,
                {
                    **node.request,
                    **plan.model_dump(mode="json", include={"reference", "pull", "archive", "cache_folder"}),
                },
                parent=self,
                depends_on=[node.reached],
            )
            for node_name, node in nodes.items()
        }
        self.content = {node_name: answer_of(command) for node_name, command in self.on_node.items()}
        self.register_outputs({})
