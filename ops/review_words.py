"""The words of a review that Markdown and page share."""

from spec.downtime import Downtime
from spec.review import GroupReview, ImageReview, KvView, MemoryView, NodeReview, Review, WeightsReview

_GIB, _MIB = 1 << 30, 1 << 20
_SHOWN_HASH, _SHOWN_REVISION = 12, 12
_MINUTES_FROM_SECONDS = 120
NOTHING = "–"


def size(size_bytes: int) -> str:
    """Writes bytes for people."""
    return f"{size_bytes / _GIB:,.1f} GiB" if size_bytes >= _GIB else f"{size_bytes / _MIB:,.1f} MiB"


def headline(review: Review) -> str:
    """Says what the change comes to, in a line."""
    counts = {
        effect: [group.name for group in review.groups if group.effect == effect]
        for effect in ("restarts", "stops", "starts")
    }
    parts = [f"{_groups(names)} {_verb(effect, names)}" for effect, names in counts.items() if names]
    if parts:
        return ", ".join(parts)
    return "nothing changes" if review.before == review.after else "no group restarts"


def _groups(names: list[str]) -> str:
    return f"group {names[0]}" if len(names) == 1 else f"groups {', '.join(names)}"


def _verb(effect: str, names: list[str]) -> str:
    return effect if len(names) == 1 else effect.removesuffix("s")


def releases(review: Review) -> str:
    """Says from which Release to which."""
    return f"{(review.before or 'nothing')[:_SHOWN_HASH]} → {review.after[:_SHOWN_HASH]}"


def downtime(found: Downtime | None) -> str:
    """Says how long a start takes, and who measured it."""
    return duration(found) if found is None else f"{duration(found)} ({', '.join(found.sources)})"


def duration(found: Downtime | None) -> str:
    """Says how long a start takes."""
    if found is None:
        return "a time that nobody measured"
    unit, per_unit = ("min", 60) if found.low_seconds >= _MINUTES_FROM_SECONDS else ("s", 1)
    low, high = round(found.low_seconds / per_unit), round(found.high_seconds / per_unit)
    return f"about {low if low == high else f'{low} to {high}'} {unit}"


def group_line(group: GroupReview) -> str:
    """Says what happens to a group and why."""
    because = f": {'; '.join(group.because)}" if group.because else ""
    if group.effect == "restarts":
        return f"restarts{because}. Away for {downtime(group.downtime)}"
    if group.effect == "starts":
        return f"starts{because}. Ready after {downtime(group.downtime)}"
    return f"{group.effect}{because}"


def rank_line(node: NodeReview) -> str:
    """Says what happens to the rank of a node."""
    if node.rank_before is None and node.rank_after is None:
        return "builds the image, runs no rank"
    if node.rank_before and node.rank_after and node.rank_before != node.rank_after:
        return f"{node.rank_before} stops, {node.rank_after} starts"
    return f"{node.rank_after or node.rank_before} {node.effect}"


def kv(view: KvView | None) -> str:
    """Writes a KV cache in short."""
    if view is None:
        return "not known"
    return (
        f"{view.tokens:,} tokens, {view.concurrency:.2f} requests of {view.max_model_len:,}, "
        f"{size(view.bytes_per_rank)} a rank"
    )


def before_and_after(before: str, after: str) -> str:
    """Writes both where they differ, one where they do not."""
    return after if before == after else f"{before} → {after}"


def memory(view: MemoryView | None) -> str:
    """Writes what is left of a node's memory."""
    if view is None:
        return "not known"
    low, high = f"{view.available_share_low * 100:.0f}", f"{view.available_share_high * 100:.0f}"
    return f"{low} % left" if low == high else f"{low} to {high} % left"


def node_memory(node: NodeReview) -> str:
    """Writes a node's memory before and after."""
    if node.rank_before is None:
        return memory(node.memory_after) if node.rank_after else NOTHING
    if node.rank_after is None:
        return "all of it comes free"
    return before_and_after(memory(node.memory_before), memory(node.memory_after))


def image_line(image: ImageReview) -> str:
    """Says what happens to the image."""
    if image.before == image.after:
        return "the image stays"
    rebuilt = [step.name for step in image.steps if step.what in ("new", "changed", "follows")]
    if image.before is None:
        made = f"{_steps(len(rebuilt))} on {image.base_after}" if rebuilt else f"{image.base_after}, as it is published"
        return f"{image.after}: {made}, made on {image.build_on}"
    base = "" if image.base_before == image.base_after else f"another base: {image.base_after}; "
    return (
        f"{image.after}: {base}{len(rebuilt)} of {_steps(len(image.steps))} built on {image.build_on} (nothing is "
        "built that it already has); how many bytes move is known once they are built"
    )


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def weights_line(one: WeightsReview) -> str:
    """Says what happens to the files of a model."""
    if one.after is None:
        return f"{one.name} is not used any more; its files stay on the nodes"
    revision = one.after[:_SHOWN_REVISION]
    shown = revision if one.before in (None, one.after) else f"{(one.before or '')[:_SHOWN_REVISION]} → {revision}"
    if not one.nodes:
        return f"{one.name} {shown}: no node lacks it, nothing moves"
    known = "of a size that nobody says" if one.size_bytes is None else size(one.size_bytes)
    at_most = "" if one.moved_bytes is None else f", {size(one.moved_bytes)} in all at most"
    return f"{one.name} {shown}: {known} each to {', '.join(one.nodes)}{at_most}"


def image_cell(node: NodeReview) -> str:
    """Says whether an image comes to a node, in a word."""
    return "new" if node.new_image else "stays" if node.rank_after else NOTHING


def weights_cell(node: NodeReview) -> str:
    """Says which weights come to a node."""
    return ", ".join(node.new_weights) or ("stay" if node.rank_after else NOTHING)
