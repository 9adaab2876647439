"""How vLLM arranges the caches of a model's layers in blocks: which layers share a block table, what a block holds.

Every request draws blocks from one pool, and each group of layers keeps a block table of its own. So a block must be
as large as the largest group, and a request takes the sum of what the groups need. The functions follow
`_get_packed_kv_cache_groups` and `_get_kv_cache_groups_uniform_page_size` of vLLM 0.29.0 to 0.32.0
(`v1/core/kv_cache_utils.py`) and 0.33.0 (`v1/core/kv_cache_planning.py`), with layers counted instead of named.
"""

from typing import Literal

from pydantic import Field

from spec.arithmetic import ceil_div
from spec.base import Strict

Kind = Literal["attention", "state", "ring", "window"]


class Pages(Strict):
    """Layers of one bucket whose cache pages have the same size.

    Attributes:
        layers: how many.
        page_bytes: what one block holds of each.
    """

    layers: int = Field(gt=0)
    page_bytes: int = Field(gt=0)


class Bucket(Strict):
    """Layers that need the same number of blocks for a request and so may share a block table.

    Attributes:
        name: what the layers are.
        kind: `attention` keeps all tokens, `window` the last ones, `state` one state (and one for each draft), `ring`
            one block for the whole life of a request.
        pages: the layers by page size.
        blocks_per_request: that a request of the longest context takes from the pool, for each group of this bucket.
        formula, substituted: how that number came about.
    """

    name: str
    kind: Kind
    pages: tuple[Pages, ...] = Field(min_length=1)
    blocks_per_request: int = Field(gt=0)
    formula: str
    substituted: str

    @property
    def layers(self) -> int:
        """All layers of the bucket."""
        return sum(pages.layers for pages in self.pages)

    @property
    def repeats(self) -> int:
        """How often its pattern (one layer of each page size) occurs."""
        return max(pages.layers for pages in self.pages)

    @property
    def is_balanced(self) -> bool:
        """Whether it has equally many layers of each page size."""
        return len({pages.layers for pages in self.pages}) == 1

    def group_bytes(self, groups: int) -> int:
        """Bytes that a block holds of the largest of so many groups."""
        return sum(ceil_div(pages.layers, groups) * pages.page_bytes for pages in self.pages)


class Group(Strict):
    """Layers with one block table.

    Attributes:
        name: of the bucket, with the place of the group in it where there are several.
        layers: caches that it covers.
        block_bytes: what one block holds of it.
        blocks_per_request: that a request of the longest context takes for it.
        formula, substituted: how that number came about.
    """

    name: str
    layers: int
    block_bytes: int
    blocks_per_request: int
    formula: str
    substituted: str


def packed_groups(buckets: tuple[Bucket, ...], rings_are_states: bool) -> tuple[Group, ...]:
    """Arranges layers whose pages differ in size side by side in a block.

    Args:
        buckets: the layers.
        rings_are_states: whether rings may be split like states (from 0.30.0 on).
    """
    width = _repeats_per_group(buckets)
    counts = [_group_count(bucket, width) for bucket in buckets]
    splittable = [_may_split(bucket, width, rings_are_states) for bucket in buckets]
    # A block holds at least what the buckets need that cannot be split any further.
    anchor = max(
        bucket.group_bytes(bucket.layers if free else count)
        for bucket, count, free in zip(buckets, counts, splittable, strict=True)
    )
    return tuple(
        group
        for bucket, count, free in zip(buckets, counts, splittable, strict=True)
        for group in _split(bucket, max(count, _least_groups(bucket, anchor)) if free else count)
    )


def uniform_page_groups(buckets: tuple[Bucket, ...]) -> tuple[Group, ...]:
    """Arranges layers of one page size in groups of equally many layers (each bucket has one page size here)."""
    sizes = [bucket.layers for bucket in buckets]
    least, most = min(sizes), max(sizes)
    # Below 1.5 times the least, vLLM pads to the most instead: fewer groups, some empty places.
    width = most if most < least * 1.5 else least
    return tuple(group for bucket in buckets for group in _split(bucket, ceil_div(bucket.layers, width)))


def whole_group(bucket: Bucket) -> Group:
    """Arranges a bucket as one group."""
    return _split(bucket, 1)[0]


def block_bytes(groups: tuple[Group, ...]) -> int:
    """What one block of the pool holds: the largest group."""
    return max(group.block_bytes for group in groups)


def _repeats_per_group(buckets: tuple[Bucket, ...]) -> int | None:
    floor = max((b.repeats for b in buckets if b.is_balanced and len(b.pages) > 1), default=0)
    if not floor:
        return None
    repeats = [bucket.repeats for bucket in buckets if bucket.is_balanced]
    # The width that wastes the fewest places; of equals, the larger.
    return min(range(floor, max(repeats) + 1), key=lambda width: (sum(-count % width for count in repeats), -width))


def _group_count(bucket: Bucket, width: int | None) -> int:
    return ceil_div(bucket.repeats, width) if bucket.is_balanced and width is not None else 1


def _may_split(bucket: Bucket, width: int | None, rings_are_states: bool) -> bool:
    return (
        bucket.kind == "state"
        or (bucket.kind == "ring" and rings_are_states)
        or (bucket.kind == "window" and width is None)
    )


def _least_groups(bucket: Bucket, anchor: int) -> int:
    return ceil_div(bucket.layers, max(anchor // bucket.pages[0].page_bytes, 1))


def _split(bucket: Bucket, groups: int) -> tuple[Group, ...]:
    return tuple(
        Group(
            name=bucket.name if groups == 1 else f"{bucket.name}, group {place + 1} of {groups}",
            layers=sum(len(range(place, pages.layers, groups)) for pages in bucket.pages),
            block_bytes=sum(len(range(place, pages.layers, groups)) * pages.page_bytes for pages in bucket.pages),
            blocks_per_request=bucket.blocks_per_request,
            formula=bucket.formula,
            substituted=bucket.substituted,
        )
        for place in range(groups)
    )
