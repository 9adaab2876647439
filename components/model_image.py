"""The image of the ranks: built a step at a time on one node, handed from there to every node that runs one."""

from typing import Any

import pulumi
import pulumi_command as command

from components.node import Node
from components.task import answer_of, task
from spec.release import ChainPlan, ImagePlan


class ModelImage(pulumi.ComponentResource):
    """Builds one image and brings it to all nodes; what each node holds is compared by layers with what was built.

    Every step is a resource, so that a preview names the first one that changed: its `changes` say what is different,
    and those after it only have another parent.

    Attributes:
        on_node: the command that made sure of the image, by node.
        content: identity and layers of the image as built.
    """

    def __init__(
        self, name: str, plan: ImagePlan, builder: Node, nodes: dict[str, Node], opts: pulumi.ResourceOptions
    ) -> None:
        """Declares base, steps, verification, the collective transfer and one command a node.

        Args:
            name: logical name.
            plan: what is built.
            builder: the node that builds.
            nodes: those that run ranks.
            opts: with the parent.
        """
        super().__init__("gb10-serving:image:ModelImage", name, None, opts)
        self._name, self._plan, self._builder = name, plan, builder
        built = self._base()
        if plan.chain:
            built = self._steps(plan.chain, built)
        image = answer_of(built).apply(lambda content: _image(plan.reference, content))
        shared = task(
            f"{name}-share",
            "image-share",
            {"source": builder.party, "receivers": [node.party for node in nodes.values()], "image": image},
            parent=self,
            depends_on=[built, *(node.reached for node in nodes.values())],
        )
        self.on_node = {node_name: self._on_node(node, image, shared) for node_name, node in nodes.items()}
        self.content = {node_name: answer_of(command) for node_name, command in self.on_node.items()}
        self.register_outputs({})

    def _base(self) -> command.local.Command:
        return self._build("base", "image-base", {}, self._builder.reached)

    def _steps(self, chain: ChainPlan, base: command.local.Command) -> command.local.Command:
        last = base
        for step in chain.steps:
            request = {"chain": chain.name, **step.model_dump(mode="json")}
            last = self._build(step.name, "image-step", request, last)
        request = {
            "chain": chain.name,
            "name": "verify",
            "identity": chain.identity,
            "reference": self._plan.reference,
            "expected": chain.expected.model_dump(mode="json"),
        }
        return self._build("verify", "image-verify", request, last)

    def _build(self, suffix: str, verb: str, request: dict[str, Any], after: pulumi.Resource) -> command.local.Command:
        timeout = self._plan.chain.step_timeout_seconds if self._plan.chain else 0
        return task(
            f"{self._name}-{suffix}",
            verb,
            {
                **self._builder.request,
                "base": self._plan.base.model_dump(mode="json"),
                "step_timeout_seconds": timeout,
                **request,
            },
            parent=self,
            depends_on=[after],
        )

    def _on_node(
        self, node: Node, image: pulumi.Output[dict[str, Any]], shared: command.local.Command
    ) -> command.local.Command:
        plan = self._plan
        return task(
            f"{self._name}-{node.name}",
            "image-on-node",
            {
                "source": self._builder.party,
                "node": node.party,
                "image": image,
                "cache_folder": plan.cache_folder,
                "chain": plan.chain.name if plan.chain else None,
                "kept": plan.kept,
            },
            parent=self,
            depends_on=[shared],
        )


def _image(reference: str, content: dict[str, Any]) -> dict[str, Any]:
    """Returns what the transfer needs to know of a built image."""
    return {"reference": reference, **{key: content[key] for key in ("identity", "layers", "architecture")}}
