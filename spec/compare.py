"""Compares two Releases of a stack, and what Pulumi says it will do, node by node."""

from collections.abc import Mapping, Sequence

from spec.difference import Change, rank_changes
from spec.downtime import expected_downtime
from spec.kv_cache import KvCachePlan
from spec.memory import RankMemory
from spec.reference import ReferenceFile
from spec.release import Finding, GroupPlan, ImagePlan, RankPlan, Release, StepPlan, WeightsPlan
from spec.review import (
    MEMORY_PARTS,
    Effect,
    FindingReview,
    GroupReview,
    ImageReview,
    KvView,
    MemoryView,
    NodeReview,
    ResourceStep,
    Review,
    StepReview,
    WeightsReview,
)


def compare(
    before: Release | None,
    after: Release,
    references: Mapping[str, ReferenceFile],
    steps: Sequence[ResourceStep] | None = None,
    unfinished: str | None = None,
) -> Review:
    """Compares what was deployed with what is planned.

    Args:
        before: the last Release that was ready; none before the first.
        after: what is planned.
        references: the files of catalog/references by their names.
        steps: what Pulumi says it would do; none where it was not asked. A rank that it removes ends, whatever the
            Releases say.
        unfinished: hash of a Release whose `up` did not end ready.
    """
    groups = tuple(
        _group(name, before, after, references, steps or ())
        for name in _names(_group_names(after), _group_names(before) if before else [])
    )
    names = _names(list(after.nodes), list(before.nodes) if before else [])
    placed = _steps_by_node(steps or (), names)
    return Review(
        stack=after.stack,
        cluster=after.cluster,
        before=before.hash if before else None,
        after=after.hash,
        unfinished=unfinished,
        groups=groups,
        nodes=tuple(_node(name, before, after, groups, placed.get(name, ())) for name in names),
        image=_image(before.image if before else None, after.image),
        weights=_weights(before, after),
        findings=_findings(before.findings if before else (), after.findings),
        settings=_settings(before, after),
        other_resources=None if steps is None else placed[None],
    )


def _names(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def _group_names(release: Release) -> list[str]:
    return [group.name for group in release.running_groups]


def _find(release: Release | None, name: str) -> GroupPlan | None:
    return next((group for group in release.running_groups if group.name == name), None) if release else None


def _group(
    name: str,
    before: Release | None,
    after: Release,
    references: Mapping[str, ReferenceFile],
    steps: Sequence[ResourceStep],
) -> GroupReview:
    old, new = _find(before, name), _find(after, name)
    ranks = {f"{name}-{rank.node}-rank{rank.rank}" for rank in (old.ranks if old else ())}
    removed = [step for step in steps if step.is_rank and step.ends_what_runs and step.name in ranks]
    effect, because = _effect(before, after, old, new, removed)
    known = after if new else before
    group = new or old
    assert known is not None
    assert group is not None
    return GroupReview(
        name=name,
        effect=effect,
        because=because,
        nodes_before=tuple(rank.node for rank in old.ranks) if old else (),
        nodes_after=tuple(rank.node for rank in new.ranks) if new else (),
        changes=_common(old, new),
        kv_before=_kv(old.kv_cache if old else None),
        kv_after=_kv(new.kv_cache if new else None),
        downtime=expected_downtime(known, group, references) if effect in ("starts", "restarts") else None,
    )


def _effect(
    before: Release | None,
    after: Release,
    old: GroupPlan | None,
    new: GroupPlan | None,
    removed: Sequence[ResourceStep],
) -> tuple[Effect, tuple[str, ...]]:
    if before is None or old is None:
        return "starts", ()
    if new is None:
        gone = "the group is not in the stack any more" if after.active else "the stack file parks the deployment"
        return "stops", (gone,)
    if old.hash != new.hash:
        return "restarts", _reasons(before, after, old, new)
    if removed:
        properties = sorted({word for step in removed for word in step.because})
        return "restarts", (f"Pulumi replaces {', '.join(step.name for step in removed)}: {', '.join(properties)}",)
    return "keeps running", ()


def _reasons(before: Release, after: Release, old: GroupPlan, new: GroupPlan) -> tuple[str, ...]:
    found = []
    if before.image.reference != after.image.reference:
        found.append("another image")
    if [plan.revision for plan in before.weights] != [plan.revision for plan in after.weights]:
        found.append("other weights")
    nodes_before, nodes_after = [rank.node for rank in old.ranks], [rank.node for rank in new.ranks]
    if nodes_before != nodes_after:
        found.append(f"ranks on {', '.join(nodes_after)} instead of {', '.join(nodes_before)}")
    kinds = {change.kind for pair in _pairs(old, new) for change in rank_changes(*pair)}
    words = {"flag": "other flags", "environment": "other variables", "container": "other container settings"}
    found += [text for kind, text in words.items() if kind in kinds]
    return tuple(found) or ("what its ranks are made from",)


def _pairs(old: GroupPlan | None, new: GroupPlan | None) -> list[tuple[RankPlan, RankPlan]]:
    """Returns old and new plan of each rank number that both have."""
    return list(zip(old.ranks, new.ranks, strict=False)) if old and new else []


def _common(old: GroupPlan | None, new: GroupPlan | None) -> tuple[Change, ...]:
    """Returns the changes that every rank has in the same way."""
    each = [rank_changes(*pair) for pair in _pairs(old, new)]
    return tuple(change for change in (each[0] if each else ()) if all(change in other for other in each))


def _kv(plan: KvCachePlan | None) -> KvView | None:
    if plan is None:
        return None
    return KvView(
        bytes_per_rank=plan.kv_cache_bytes,
        tokens=plan.tokens,
        concurrency=plan.concurrency,
        max_model_len=plan.max_model_len,
    )


def _placed(release: Release | None, node: str) -> tuple[GroupPlan, RankPlan] | None:
    if release is None:
        return None
    pairs = ((group, rank) for group in release.running_groups for rank in group.ranks)
    return next((pair for pair in pairs if pair[1].node == node), None)


def _node(
    name: str,
    before: Release | None,
    after: Release,
    groups: Sequence[GroupReview],
    resources: Sequence[ResourceStep],
) -> NodeReview:
    old, new = _placed(before, name), _placed(after, name)
    common = [change for group in groups if new and group.name == new[0].name for change in group.changes]
    differing = rank_changes(old[1], new[1]) if old and new else ()
    image_comes = before is None or name not in before.rank_nodes or before.image.reference != after.image.reference
    return NodeReview(
        node=name,
        effect=_node_effect(old, new, groups),
        rank_before=f"{old[0].name} rank {old[1].rank}" if old else None,
        rank_after=f"{new[0].name} rank {new[1].rank}" if new else None,
        claim=_claim(before, after, bool(old), bool(new)),
        changes=tuple(change for change in differing if change not in common),
        memory_before=_memory(old),
        memory_after=_memory(new),
        new_image=bool(new) and image_comes,
        new_weights=tuple(plan.name for plan in after.weights if new and not _has(before, name, plan)),
        resources=tuple(resources),
    )


def _node_effect(
    old: tuple[GroupPlan, RankPlan] | None, new: tuple[GroupPlan, RankPlan] | None, groups: Sequence[GroupReview]
) -> Effect:
    if old and new:
        if old[0].name != new[0].name:
            return "restarts"
        return next(group.effect for group in groups if group.name == new[0].name)
    if new:
        return "starts"
    return "stops" if old else "keeps running"


def _claim(before: Release | None, after: Release, had: bool, has: bool) -> str:
    if before and had and has:
        return "kept" if before.stack == after.stack else f"taken from {before.stack}"
    if has:
        return "taken"
    return "given up" if had else "none"


def _memory(placed: tuple[GroupPlan, RankPlan] | None) -> MemoryView | None:
    if placed is None or placed[0].memory is None:
        return None
    plan = placed[0].memory
    rank = plan.ranks[placed[1].rank]
    return MemoryView(
        total_bytes=plan.total_bytes,
        parts=_parts(rank),
        available_share_low=rank.available_share_low,
        available_share_high=rank.available_share_high,
    )


def _parts(rank: RankMemory) -> dict[str, int]:
    sizes = (rank.weights, rank.drafter, rank.kv_cache, rank.runtime, rank.graphs, rank.host, rank.api_server)
    return {
        name: (part.low + part.high) // 2 for name, part in zip(MEMORY_PARTS, sizes, strict=True) if part is not None
    }


def _image(before: ImagePlan | None, after: ImagePlan) -> ImageReview:
    old = {_place_free(step): step for step in before.chain.steps} if before and before.chain else {}
    new = after.chain.steps if after.chain else ()
    gone = [step.name for name, step in old.items() if name not in {_place_free(step) for step in new}]
    return ImageReview(
        before=before.reference if before else None,
        after=after.reference,
        build_on=after.build_on,
        base_before=_base(before) if before else None,
        base_after=_base(after),
        steps=(
            *(_step(old.get(_place_free(step)), step) for step in new),
            *(StepReview(name=name, what="removed", changes=()) for name in gone),
        ),
    )


def _place_free(step: StepPlan) -> str:
    """Returns the name of a step without its position, which changes when another step comes before it."""
    return step.name.partition("-")[2]


def _base(plan: ImagePlan) -> str:
    return plan.base.pull or plan.base.reference


def _step(old: StepPlan | None, new: StepPlan) -> StepReview:
    if old is None:
        return StepReview(name=new.name, what="new", changes=tuple(new.changes))
    changes = tuple(
        name for name in dict.fromkeys((*new.changes, *old.changes)) if old.changes.get(name) != new.changes.get(name)
    )
    if changes:
        return StepReview(name=new.name, what="changed", changes=changes)
    return StepReview(name=new.name, what="same" if old.identity == new.identity else "follows", changes=())


def _has(release: Release | None, node: str, plan: WeightsPlan) -> bool:
    """Whether a node ran a rank of a Release with these very files; those of a share never come to a node."""
    if plan.source.kind == "nfs":
        return True
    known = {(one.folder, one.revision) for one in release.weights} if release else set()
    return release is not None and node in release.rank_nodes and (plan.folder, plan.revision) in known


def _weights(before: Release | None, after: Release) -> tuple[WeightsReview, ...]:
    old = {plan.name: plan for plan in before.weights} if before else {}
    new = {plan.name: plan for plan in after.weights}
    return tuple(
        WeightsReview(
            name=name,
            before=old[name].revision if name in old else None,
            after=new[name].revision if name in new else None,
            size_bytes=new[name].size_bytes if name in new else None,
            nodes=tuple(node for node in after.rank_nodes if name in new and not _has(before, node, new[name])),
        )
        for name in _names(list(new), list(old))
    )


def _findings(before: Sequence[Finding], after: Sequence[Finding]) -> tuple[FindingReview, ...]:
    old, new = {_said(one) for one in before}, {_said(one) for one in after}
    return (
        *(FindingReview(finding=one, what="still there" if _said(one) in old else "new") for one in after),
        *(FindingReview(finding=one, what="gone") for one in before if _said(one) not in new),
    )


def _said(finding: Finding) -> tuple[str, str]:
    """Returns what a rule says without the place, whose first line names the stack's file."""
    return finding.rule, finding.text.partition("\n")[2]


_OUTSIDE_GROUPS = ("active", "memory", "readiness", "stop_grace_seconds", "kept_releases", "storage_folder")


def _settings(before: Release | None, after: Release) -> tuple[Change, ...]:
    if before is None:
        return ()
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    return tuple(
        Change(kind="container", name=name, before=str(old[name]), after=str(new[name]))
        for name in _OUTSIDE_GROUPS
        if old[name] != new[name]
    )


def _steps_by_node(steps: Sequence[ResourceStep], nodes: Sequence[str]) -> dict[str | None, tuple[ResourceStep, ...]]:
    """Returns the steps by the node that their logical names hold, none for those of no node."""
    placed: dict[str | None, list[ResourceStep]] = {None: []}
    for step in steps:
        words = f"-{step.name}-"
        owner = max((node for node in nodes if f"-{node}-" in words), key=len, default=None)
        placed.setdefault(owner, []).append(step)
    return {node: tuple(found) for node, found in placed.items()}
