"""What is different between two plans of a rank: flags, variables, mounts and limits, old and new side by side."""

from collections.abc import Mapping
from typing import Literal

from spec.base import Strict
from spec.release import RankPlan

Kind = Literal["flag", "environment", "container"]


class Change(Strict):
    """One setting that is otherwise than before.

    Attributes:
        kind: a flag of the engine, a variable, or a property of the container.
        name: of it.
        before, after: what it was and what it becomes; none where it is absent.
    """

    kind: Kind
    name: str
    before: str | None
    after: str | None


def rank_changes(before: RankPlan, after: RankPlan) -> tuple[Change, ...]:
    """Returns everything that differs between two plans of what becomes one container."""
    return (
        *_changes("flag", flags_of(before.command), flags_of(after.command)),
        *_changes("environment", before.environment, after.environment),
        *_changes("container", _properties(before), _properties(after)),
    )


def flags_of(command: tuple[str, ...]) -> dict[str, str]:
    """Returns a command line by its flags; what stands before the first one is the `program`.

    A flag that is given several times keeps all of its values.
    """
    found: dict[str, list[str]] = {"program": []}
    name = "program"
    for word in command:
        if word.startswith("--"):
            name, separator, value = word.partition("=")
            found.setdefault(name, []).extend([value] if separator else [])
        else:
            found[name].append(word)
    return {name: " ".join(words) or "(set)" for name, words in found.items()}


def _properties(rank: RankPlan) -> dict[str, str]:
    """Returns the rest of a rank by readable names: whatever it is made from beside command line and environment."""
    apart = {"command": True, "environment": True, "mounts": True, "node": True, "rank": True}
    data = rank.model_dump(mode="json", exclude={**apart, "supervision": {"peers"}})
    peers = {f"peer {peer.rank}": f"{peer.node} at {peer.address}:{peer.port}" for peer in rank.supervision.peers}
    mounts = {
        f"mount {mount.target}": f"{mount.source}{'' if mount.read_only else ' (writable)'}" for mount in rank.mounts
    }
    return {**mounts, **peers, **_flat("", data)}


def _flat(prefix: str, value: object) -> dict[str, str]:
    """Returns nested data with one line for each leaf, `supervision/rails/0/address`."""
    items: list[tuple[str, object]] = []
    if isinstance(value, dict):
        items = [(str(key), inner) for key, inner in value.items()]
    elif isinstance(value, list):
        items = [(str(position), inner) for position, inner in enumerate(value)]
    if not items:
        return {prefix: "none" if value in (None, [], {}) else str(value)} if prefix else {}
    return {
        name: text for key, inner in items for name, text in _flat(f"{prefix}/{key}" if prefix else key, inner).items()
    }


def _changes(kind: Kind, before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    return [
        Change(kind=kind, name=name, before=before.get(name), after=after.get(name))
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    ]
