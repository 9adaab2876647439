"""What a claim found on a node means: who stands behind it, and whether it may be cleared."""

from collections.abc import Mapping
from typing import Any, Literal

from spec.base import Strict

State = Literal["free", "held", "stale", "left", "unknown"]
"""`stale`: neither containers nor a stack stand behind the claim. `left`: containers without a stack that owns them."""


class RankContainer(Strict):
    """A container of this program on a node, running or not."""

    name: str
    stack: str
    group: str
    state: str


class StackView(Strict):
    """What the backend's state of a stack says that it holds: machines as ADDRESS:PORT."""

    machines: frozenset[str]


class Found(Strict):
    """A node's claim, judged.

    Attributes:
        state: what it comes to.
        claim: as it lies on the node; none if it is free or cannot be asked.
        containers: of this program that no stack of the backend owns; with `held` all that the holder has.
        why: in words.
    """

    state: State
    claim: dict[str, Any] | None
    containers: tuple[RankContainer, ...]
    why: str


def judge_claim(
    claim: dict[str, Any] | None,
    containers: tuple[RankContainer, ...],
    machine: str,
    stacks: Mapping[str, StackView],
) -> Found:
    """Judges what lies on a node.

    A stack that this backend does not know may be another controller's: what runs for it is never called left over.

    Args:
        claim: of the node.
        containers: on it.
        machine: the node as the state knows it.
        stacks: the backend's stacks.
    """
    holder = claim["stack"] if claim else None
    names = {one.stack for one in containers} | ({holder} if holder else set())
    owners = {name for name in names if name in stacks and machine in stacks[name].machines}
    foreign = {one.stack for one in containers if one.stack not in stacks}
    if holder in owners or foreign:
        who = holder or ", ".join(sorted(foreign))
        behind = "its state holds this node" if holder in owners else "its ranks are here; another controller's stack"
        return Found(state="held", claim=claim, containers=containers, why=f"stack {who}: {behind}")
    orphans = tuple(one for one in containers if one.stack not in owners)
    if orphans:
        listed = ", ".join(one.name for one in orphans)
        return Found(state="left", claim=claim, containers=orphans, why=f"{listed}: in no stack's state any more")
    if claim is not None:
        return Found(state="stale", claim=claim, containers=(), why=f"no container and no state of stack {holder} here")
    return Found(state="free", claim=None, containers=containers, why="nobody holds it")
