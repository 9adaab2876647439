"""The weights of a model, or of its drafter, on every node that runs a rank."""

from typing import Any

import pulumi

from components.node import Node
from components.task import answer_of, task
from spec.release import WeightsPlan

_MIB, _GIB = 1 << 20, 1 << 30


class ModelWeights(pulumi.ComponentResource):
    """One transfer to all nodes together, and one receipt a node.

    The receipts wait for the transfer and take nothing from it: with another node the transfer runs again, and nothing
    of the nodes that have the weights changes.

    Attributes:
        plan: what is copied.
        transfer: the command that brings them to every node.
        on_node: the command that read the receipt, by node.
        manifest: hash of the manifest that the node's receipt vouches for, by node.
    """

    def __init__(self, plan: WeightsPlan, nodes: dict[str, Node], opts: pulumi.ResourceOptions) -> None:
        """Declares the transfer and the receipts."""
        name = f"weights-{plan.name}"
        super().__init__("gb10-serving:weights:ModelWeights", f"model-{name}", None, opts)
        self.plan = plan
        self.transfer = task(
            name,
            "weights",
            {
                "plan": plan.model_dump(mode="json"),
                "nodes": [node.party for node in nodes.values()],
            },
            parent=self,
            depends_on=[node.reached for node in nodes.values()],
        )
        self.on_node = {
            node_name: task(
                f"{name}-{node_name}",
                "weights-receipt",
                {**node.request, **plan.receipt_request},
                parent=self,
                depends_on=[self.transfer],
            )
            for node_name, node in nodes.items()
        }
        self.manifest = {node_name: answer_of(command)["manifest"] for node_name, command in self.on_node.items()}
        if pulumi.runtime.is_dry_run():
            self._tell_bytes()
        self.register_outputs({})

    def _tell_bytes(self) -> None:
        """Says in a preview what goes where: a receipt whose output is known is on its node already."""
        answers = {name: answer_of(command) for name, command in self.on_node.items()}
        pulumi.Output.all(**answers).apply(self._tell, run_with_unknowns=True)

    def _tell(self, answers: dict[str, Any]) -> None:
        known = {name: found for name, found in answers.items() if not pulumi.contains_unknowns(found)}
        lacking = [name for name in answers if name not in known]
        if not lacking:
            return
        sizes = [found["size_bytes"] for found in known.values()] or [self.plan.size_bytes]
        size = _shown(sizes[0]) if sizes[0] else "all files (nobody says how large)"
        have = f"; nothing to {', '.join(known)}" if known else ""
        pulumi.log.info(f"{self.plan.name}: {size} each to {', '.join(lacking)}, less what is there{have}", self)


def _shown(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.1f} GiB" if size_bytes >= _GIB else f"{size_bytes / _MIB:.1f} MiB"
