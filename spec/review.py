"""What a change of a stack does to each node, as plain data (spec/compare.py finds it out)."""

from typing import Literal

from spec.base import Strict
from spec.difference import Change
from spec.downtime import Downtime
from spec.release import Finding

MEMORY_PARTS = ("weights", "drafter", "KV cache", "engine", "graphs", "host", "API server")
"""What takes a node's memory, by the names that a MemoryView uses."""

Effect = Literal["starts", "stops", "restarts", "keeps running"]


class ResourceStep(Strict):
    """One resource that Pulumi would touch.

    Attributes:
        name: logical name.
        kind: type of the resource, such as `docker:index/container:Container`.
        operation: as Pulumi calls it.
        because: properties that differ.
    """

    name: str
    kind: str
    operation: str
    because: tuple[str, ...] = ()

    @property
    def is_rank(self) -> bool:
        """Whether it is the container of a rank."""
        return self.kind.startswith("docker:index/container:")

    @property
    def ends_what_runs(self) -> bool:
        """Whether what is there is removed, for good or for a new one."""
        return self.operation in ("delete", "replace", "delete-replaced", "create-replacement")


class KvView(Strict):
    """The KV cache of a group in short: size on each rank, tokens of the pool, longest requests at once."""

    bytes_per_rank: int
    tokens: int
    concurrency: float
    max_model_len: int


class MemoryView(Strict):
    """A node's memory at rest.

    Attributes:
        total_bytes: of the node.
        parts: bytes by what takes them, the middle where only a range is known.
        available_share_low, available_share_high: what is left, as a share of the whole.
    """

    total_bytes: int
    parts: dict[str, int]
    available_share_low: float
    available_share_high: float


class GroupReview(Strict):
    """One group.

    Attributes:
        name: of the group.
        effect: what happens to it.
        because: what differs, in words.
        nodes_before, nodes_after: the head first.
        changes: settings that differ on every rank in the same way.
        kv_before, kv_after: none where the planner knows no figures.
        downtime: how long it is away, or how long it takes to start; none where nobody measured it.
    """

    name: str
    effect: Effect
    because: tuple[str, ...]
    nodes_before: tuple[str, ...]
    nodes_after: tuple[str, ...]
    changes: tuple[Change, ...]
    kv_before: KvView | None
    kv_after: KvView | None
    downtime: Downtime | None


class NodeReview(Strict):
    """One node.

    Attributes:
        node: its name.
        effect: what happens to the rank on it; `keeps running` with neither rank is a node that only builds.
        rank_before, rank_after: `GROUP rank NUMBER`.
        claim: whether the stack takes the node (`from` another one), gives it up, keeps it, or never needs it.
        changes: settings of this rank that differ and are not those of the whole group.
        memory_before, memory_after: none where the planner knows no figures.
        new_image: whether an image comes to it.
        new_weights: names of the models whose files come to it.
        resources: what Pulumi would touch here.
    """

    node: str
    effect: Effect
    rank_before: str | None
    rank_after: str | None
    claim: str
    changes: tuple[Change, ...]
    memory_before: MemoryView | None
    memory_after: MemoryView | None
    new_image: bool
    new_weights: tuple[str, ...]
    resources: tuple[ResourceStep, ...]


class StepReview(Strict):
    """One step of the image's chain.

    Attributes:
        name: of the step.
        what: `follows` is built again because a step before it changed.
        changes: what differs in it, by readable names.
    """

    name: str
    what: Literal["new", "changed", "follows", "same", "removed"]
    changes: tuple[str, ...]


class ImageReview(Strict):
    """The image of all ranks. Its size is known only once it is built.

    Attributes:
        before, after: reference; none before the first deployment.
        build_on: the node that builds or pulls it.
        base_before, base_after: where it starts.
        steps: of the chain, in order, those that were removed last.
    """

    before: str | None
    after: str
    build_on: str
    base_before: str | None
    base_after: str
    steps: tuple[StepReview, ...]


class WeightsReview(Strict):
    """The files of one model.

    Attributes:
        name: of the model.
        before, after: revision; none where it is not used.
        size_bytes: of all files; none where the catalogue does not say.
        nodes: that do not have this revision yet as far as the last Release tells.
    """

    name: str
    before: str | None
    after: str | None
    size_bytes: int | None
    nodes: tuple[str, ...]

    @property
    def moved_bytes(self) -> int | None:
        """What moves at most: nodes may have a part of it."""
        return None if self.size_bytes is None else self.size_bytes * len(self.nodes)


class FindingReview(Strict):
    """A warning of a rule, and whether it is new with this change."""

    finding: Finding
    what: Literal["new", "still there", "gone"]


class Review(Strict):
    """What a change does.

    Attributes:
        stack, cluster: names.
        before, after: hashes of the Releases; none before the first deployment.
        unfinished: hash of a Release whose `up` did not end ready: what runs may differ from `before`.
        groups, nodes: those of either Release, the new one's first.
        image, weights, findings: likewise.
        settings: what differs beside the groups, such as time limits.
        other_resources: what Pulumi would touch that belongs to no node; none where it was not asked.
    """

    stack: str
    cluster: str
    before: str | None
    after: str
    unfinished: str | None
    groups: tuple[GroupReview, ...]
    nodes: tuple[NodeReview, ...]
    image: ImageReview
    weights: tuple[WeightsReview, ...]
    findings: tuple[FindingReview, ...]
    settings: tuple[Change, ...]
    other_resources: tuple[ResourceStep, ...] | None

    @property
    def interrupts(self) -> bool:
        """Whether something that serves is stopped."""
        return any(group.effect in ("restarts", "stops") for group in self.groups)
