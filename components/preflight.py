"""The preflight of one rank's node: passes before anything of the running group is stopped."""

import pulumi
import pulumi_command as command

from components.model_image import ModelImage
from components.model_weights import ModelWeights
from components.node import Node
from components.task import task
from spec.handover import held_ports
from spec.release import GroupPlan, RankPlan, Release


def preflight(
    name: str,
    release: Release,
    group: GroupPlan,
    rank: RankPlan,
    node: Node,
    image: ModelImage,
    weights: list[ModelWeights],
    parent: pulumi.Resource,
) -> command.local.Command:
    """Declares the preflight. Its request carries the group's hash, so it runs again, in place, for every new group."""
    return task(
        name,
        "preflight",
        {
            **node.request,
            "group_hash": group.hash,
            "checks": {
                "stack": release.stack,
                "group": group.name,
                "storage_folder": release.storage_folder,
                "image": {
                    "node": rank.node,
                    "reference": release.image.reference,
                    "identity": image.content[rank.node]["identity"],
                    "layers": image.content[rank.node]["layers"],
                },
                "weights": [
                    {
                        **one.plan.receipt_request,
                        "manifest": one.manifest[rank.node],
                    }
                    for one in weights
                ],
                "mounts": [mount.source for mount in rank.mounts],
                "fabric": node.plan.fabric,
                "floor_percent": release.memory.floor_percent,
                "gpus": rank.gpus,
                "ports": list(held_ports(group, rank)),
                "required_bytes": group.required_bytes,
                "shared_memory_bytes": node.plan.shared_memory_bytes,
                "open_files": rank.open_files,
            },
        },
        parent=parent,
        depends_on=[image.on_node[rank.node], *(one.on_node[rank.node] for one in weights)],
    )
