"""The preflight of one rank's node: passes before anything of the running group is stopped."""

import pulumi
import pulumi_command as command

from components.model_image import ModelImage
from components.model_weights import ModelWeights
from components.node import Node
from components.task import task
from spec.asking import preflight_checks
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
            "checks": preflight_checks(
                release,
                group,
                rank,
                {key: image.content[rank.node][key] for key in ("identity", "layers")},
                {one.plan.name: one.manifest[rank.node] for one in weights},
            ),
        },
        parent=parent,
        depends_on=[image.on_node[rank.node], *(one.on_node[rank.node] for one in weights)],
    )
