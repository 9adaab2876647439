"""A group of ranks that serves one model together: preflight, claims, generation, ranks, readiness."""

import pulumi
import pulumi_command as command
import pulumi_docker as docker

from components.hooks import Hooks
from components.model_image import ModelImage
from components.model_weights import ModelWeights
from components.node import Node
from components.preflight import preflight
from components.rank_container import rank_container
from components.rank_secrets import RankSecrets, Secrets
from components.task import task
from spec.asking import ready_request, turn_request
from spec.release import GroupPlan, RankPlan, Release


class ServingGroup(pulumi.ComponentResource):
    """One group, the unit of replacement.

    Any change to any rank is another generation. The generation is the single root of the replacement: the engine then
    deletes the head, the workers and the generation, and creates the generation, the workers and the head, in this
    order. Preflights run before; claims stay. With a second such root the chains would run side by side and new ranks
    could meet old ones (shared/facts/engine.md 2.2 and 2.3).

    Attributes:
        generation: the root; its output is the group's hash.
        ranks: containers, the head first.
        readiness: done once the group answered right.
    """

    def __init__(
        self,
        name: str,
        release: Release,
        group: GroupPlan,
        nodes: dict[str, Node],
        image: ModelImage,
        weights: list[ModelWeights],
        first: list[pulumi.Resource],
        hooks: Hooks,
        secrets: Secrets,
        opts: pulumi.ResourceOptions,
    ) -> None:
        """Declares everything that makes the group run and prove itself; nothing of it stops before `first` is done."""
        super().__init__("gb10-serving:serving:ServingGroup", name, None, opts)
        self._name, self._release, self._group, self._nodes = name, release, group, nodes
        self._hooks = hooks

        preflights: list[pulumi.Resource] = [
            preflight(f"{name}-{rank.node}-preflight", release, group, rank, nodes[rank.node], image, weights, self)
            for rank in group.ranks
        ]
        taken = self._take_nodes([*first, *preflights])
        claims: list[pulumi.Resource] = [self._claim(rank, taken) for rank in group.ranks]
        before: list[pulumi.Resource] = [*claims, *self._turn(claims)]
        kept = RankSecrets(f"{name}-secrets", group, nodes, secrets, claims, self)
        self.generation = command.local.Command(
            f"{name}-generation",
            create=f"echo {group.hash}",
            triggers=[group.hash, kept.fingerprint],
            add_previous_output_in_env=False,
            opts=pulumi.ResourceOptions(parent=self, depends_on=before, delete_before_replace=True),
        )
        workers = [self._rank(rank, [*claims, kept.on_node[rank.node]]) for rank in group.ranks[1:]]
        head = self._rank(group.ranks[0], [*claims, kept.on_node[group.ranks[0].node], *workers])
        self.ranks = [head, *workers]
        self.readiness = self._readiness()
        address = nodes[group.ranks[0].node].plan.connection.address
        self.endpoint = self.readiness.stdout.apply(
            lambda _: f"http://{address}:{group.port}/v1" if group.serves else None
        )
        self.register_outputs({"endpoint": self.endpoint})

    def _take_nodes(self, before: list[pulumi.Resource]) -> command.local.Command:
        """Takes all nodes or none; a claim per node stands for each, so that one that leaves the group is freed."""
        return task(
            f"{self._name}-claims",
            "take-nodes",
            {
                "nodes": [self._nodes[rank.node].request for rank in self._group.ranks],
                "stack": self._release.stack,
                "group": self._group.name,
            },
            parent=self,
            depends_on=before,
            delete_verb="free-nodes",
        )

    def _claim(self, rank: RankPlan, taken: command.local.Command) -> command.local.Command:
        return task(
            f"{self._name}-{rank.node}-claim",
            "claim",
            {**self._nodes[rank.node].request, "stack": self._release.stack, "group": self._group.name},
            parent=self,
            depends_on=[taken],
            delete_verb="release-claim",
        )

    def _turn(self, claims: list[pulumi.Resource]) -> list[pulumi.Resource]:
        """In a pool behind a router, a group is only exchanged when those before it answer right."""
        router = self._release.router
        if router is None or len(self._release.groups) == 1:
            return []
        request = turn_request(self._release, router, self._group)
        return [task(f"{self._name}-turn", "take-turn", request, parent=self, depends_on=claims)]

    def _rank(self, rank: RankPlan, depends_on: list[pulumi.Resource]) -> docker.Container:
        reference = self._release.image.reference
        return rank_container(
            f"{self._name}-{rank.node}-rank{rank.rank}",
            self._release,
            self._group,
            rank,
            self._nodes[rank.node],
            self.generation.stdout.apply(lambda _: reference),
            depends_on,
            self._hooks.before_rank_create,
            self,
        )

    def _readiness(self) -> command.local.Command:
        return task(
            f"{self._name}-ready",
            "ready",
            ready_request(self._release, self._group),
            parent=self,
            depends_on=list(self.ranks),
            triggers=[rank.id for rank in self.ranks],
        )
