"""A whole deployment: nodes, image, weights and groups of one Release."""

import pulumi

from components.hooks import Hooks
from components.model_image import ModelImage
from components.model_weights import ModelWeights
from components.node import Node
from components.rank_secrets import Secrets
from components.release_history import ReleaseHistory
from components.router import Router
from components.serving_group import ServingGroup
from spec.release import Release


class Deployment(pulumi.ComponentResource):
    """Everything that one stack brings about.

    Attributes:
        endpoints: the address of each group's API by the group's name, known once it answered right.
        front: the one address for users of all groups; none without a router.
    """

    def __init__(self, release: Release, hooks: Hooks, secrets: Secrets) -> None:
        """Declares the deployment of a Release.

        Args:
            release: what to deploy.
            hooks: what is done before ranks are created.
            secrets: what the engines need and nobody may see.
        """
        super().__init__("gb10-serving:deployment:Deployment", release.stack, None)
        child = pulumi.ResourceOptions(parent=self)
        nodes = {name: Node(name, plan, release.storage_folder, child) for name, plan in release.nodes.items()}
        rank_nodes = {name: nodes[name] for name in release.rank_nodes}
        image = ModelImage("image", release.image, nodes[release.image.build_on], rank_nodes, child)
        weights = [ModelWeights(plan, rank_nodes, child) for plan in release.weights]
        router = None
        if release.router and release.active:
            router = Router(release, release.router, nodes[release.router.node], hooks, child)
        first: list[pulumi.Resource] = [router.settings] if router else []
        self.groups = {
            group.name: ServingGroup(group.name, release, group, nodes, image, weights, first, hooks, secrets, child)
            for group in release.running_groups
        }
        if not release.active:
            pulumi.log.info("parked (active: false): no ranks and no claims; image and weights stay", self)
        proofs: list[pulumi.Resource] = [group.readiness for group in self.groups.values()]
        ReleaseHistory(release, proofs, child)
        self.endpoints = pulumi.Output.all(**{name: group.endpoint for name, group in self.groups.items()})
        self.front = router.proven_by(proofs) if router else None
        self.register_outputs({"endpoints": self.endpoints})
