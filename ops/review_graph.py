"""The graph of one group as SVG: a column a node, from image and weights down to the rank, and what happens to each."""

from dataclasses import dataclass

from ops import review_words as words
from ops.markup import Node, element
from spec.review import MEMORY_PARTS, GroupReview, MemoryView, NodeReview, Review

_COLUMN, _GAP, _MARGIN = 208, 22, 12
_BOX_HEIGHT, _STEP = 44, 58
_BAR_HEIGHT, _MEMORY_STEP = 12, 30
_HEADING_HEIGHT = 22
_TITLE_LETTER, _DETAIL_LETTER = 6.9, 5.6
"""Width of a letter, roughly: SVG cannot break or cut a text that is too long."""

TONES = {"restarts": "restart", "starts": "start", "stops": "stop", "keeps running": "same"}
"""Class of the style sheet by effect."""


_CLAIM_TONES = {"taken": "start", "given": "stop"}


@dataclass(frozen=True)
class _Box:
    title: str
    text: str
    tone: str


def group_graph(review: Review, group: GroupReview) -> Node:
    """Returns the drawing of a group: bands for what is done once, boxes for what is done on each node."""
    nodes = [node for node in review.nodes if node.node in {*group.nodes_before, *group.nodes_after}]
    width = 2 * _MARGIN + len(nodes) * _COLUMN + (len(nodes) - 1) * _GAP
    drawing = _Drawing(width)
    drawing.band(_image_band(review))
    drawing.headings([node.node for node in nodes])
    drawing.columns([_above_the_generation(node) for node in nodes])
    drawing.band(_generation_band(group))
    drawing.columns([[_rank_box(node, group)] for node in nodes])
    drawing.memory([(node.memory_before, node.memory_after) for node in nodes])
    drawing.band(_ready_band(group))
    return drawing.finished(f"Graph of group {group.name}")


class _Drawing:
    """Draws from top to bottom; every part is joined to the one above it."""

    def __init__(self, width: int) -> None:
        self._width, self._y = width, _MARGIN
        self._parts: list[Node] = []
        self._joins: list[int] = []
        self._bottom = _MARGIN

    def band(self, box: _Box) -> None:
        """Draws a box over all columns."""
        self._join()
        self._box(_MARGIN, self._width - 2 * _MARGIN, box)
        self._advance(_BOX_HEIGHT)

    def headings(self, names: list[str]) -> None:
        """Draws the name of each node over its column."""
        for position, name in enumerate(names):
            self._text(_left(position) + 10, self._y + 8, name, "heading", _COLUMN, _TITLE_LETTER)
        self._y += _HEADING_HEIGHT

    def columns(self, columns: list[list[_Box]]) -> None:
        """Draws a column of boxes a node."""
        self._joins = [_left(position) + _COLUMN // 2 for position in range(len(columns))]
        for row in zip(*columns, strict=True):
            self._join()
            for position, box in enumerate(row):
                self._box(_left(position), _COLUMN, box)
            self._advance(_BOX_HEIGHT)

    def memory(self, views: list[tuple[MemoryView | None, MemoryView | None]]) -> None:
        """Draws a bar a node for its memory before, where it differs, and after."""
        if not any(before or after for before, after in views):
            return
        lines = 2 if any(before and before != after for before, after in views) else 1
        for position, (before, after) in enumerate(views):
            pairs = [(after, "")] if lines == 1 else [(before, "before: "), (after, "after: ")]
            for line, (view, when) in enumerate(pairs):
                self._memory_bar(_left(position), self._y + line * _MEMORY_STEP, view, when)
        self._advance(lines * _MEMORY_STEP)

    def finished(self, title: str) -> Node:
        """Returns the drawing."""
        height = self._bottom + _MARGIN
        return element(
            "svg",
            element("title", title),
            *self._parts,
            role="img",
            width=self._width,
            height=height,
            viewBox=f"0 0 {self._width} {height}",
        )

    def _advance(self, height: int) -> None:
        self._bottom = self._y + height
        self._y = self._bottom + _STEP - _BOX_HEIGHT

    def _join(self) -> None:
        for x in self._joins:
            self._parts.append(element("line", x1=x, y1=self._bottom, x2=x, y2=self._y, class_="join"))

    def _box(self, x: int, width: int, box: _Box) -> None:
        self._parts.append(
            element("rect", x=x, y=self._y, width=width, height=_BOX_HEIGHT, rx=6, class_=f"box {box.tone}")
        )
        self._text(x + 10, self._y + 18, box.title, "title", width, _TITLE_LETTER)
        self._text(x + 10, self._y + 34, box.text, "detail", width, _DETAIL_LETTER)

    def _memory_bar(self, x: int, y: int, view: MemoryView | None, when: str) -> None:
        text = f"{when}{words.memory(view) if view else 'nothing of ours'}"
        self._text(x, y + 10, text, "detail", _COLUMN, _DETAIL_LETTER)
        y += 14
        self._parts.append(element("rect", x=x, y=y, width=_COLUMN, height=_BAR_HEIGHT, class_="memory"))
        left: float = x
        for name, size_bytes in view.parts.items() if view else ():
            assert view is not None
            width = min(_COLUMN * size_bytes / view.total_bytes, x + _COLUMN - left)
            label = f"{name} {words.size(size_bytes)}"
            self._parts.append(
                element(
                    "rect",
                    element("title", label),
                    x=f"{left:.1f}",
                    y=y,
                    width=f"{width:.1f}",
                    height=_BAR_HEIGHT,
                    class_=f"part{MEMORY_PARTS.index(name)}",
                )
            )
            left += width

    def _text(self, x: int, y: int, text: str, class_: str, width: int, letter: float) -> None:
        most = int((width - 16) / letter)
        shown = text if len(text) <= most else f"{text[: most - 1]}…"
        self._parts.append(element("text", element("title", text), shown, x=x, y=y, class_=class_))


def _left(position: int) -> int:
    return _MARGIN + position * (_COLUMN + _GAP)


def _image_band(review: Review) -> _Box:
    image = review.image
    if image.before == image.after:
        return _Box("image", f"{image.after} stays", "same")
    built = sum(step.what in ("new", "changed", "follows") for step in image.steps)
    what = f"{built} of {len(image.steps)} steps built" if image.steps else "pulled by digest"
    return _Box("image", f"{what} on {image.build_on}, then handed on: {image.after}", "start")


def _above_the_generation(node: NodeReview) -> list[_Box]:
    going = node.rank_after is None
    tone = "stop" if going else "same"
    return [
        _Box("image", "not needed any more" if going else words.image_cell(node), _new(node.new_image)),
        _Box("weights", ", ".join(node.new_weights) or ("stay on disk" if going else "stay"), _new(node.new_weights)),
        _Box("preflight", "none: nothing starts here" if going else "passes before anything is stopped", tone),
        _Box("claim", node.claim, _CLAIM_TONES.get(node.claim.split()[0], "same")),
    ]


def _new(something: object) -> str:
    return "start" if something else "same"


def _generation_band(group: GroupReview) -> _Box:
    text = {
        "restarts": "head stops, then workers; when nothing of the old group is left, workers start, then the head",
        "starts": "workers start, head last",
        "stops": "head stops, then workers",
        "keeps running": "the same: no rank is touched",
    }[group.effect]
    return _Box(f"generation of {group.name}", text, TONES[group.effect])


def _rank_box(node: NodeReview, group: GroupReview) -> _Box:
    turns = [_turn("stops", group.nodes_before, node.node), _turn("starts", group.nodes_after, node.node)]
    order = "keeps running" if group.effect == "keeps running" else ", ".join(turn for turn in turns if turn)
    ranks = dict.fromkeys(rank for rank in (node.rank_before, node.rank_after) if rank)
    return _Box(" → ".join(ranks), order, TONES[node.effect])


def _turn(what: str, nodes: tuple[str, ...], node: str) -> str:
    """Says when a rank's turn comes: the head stops first and starts last."""
    if node not in nodes:
        return ""
    if len(nodes) == 1:
        return what
    is_head = nodes[0] == node
    if what == "stops":
        return "stops first" if is_head else "stops after"
    return "starts last" if is_head else "starts before rank 0"


def _ready_band(group: GroupReview) -> _Box:
    if group.effect == "stops":
        return _Box("ready", "nothing answers any more", "stop")
    if group.effect == "keeps running":
        return _Box("ready", "answers all the time", "same")
    text = f"{words.duration(group.downtime)}: health, known answers, no NaN, traffic on the rails"
    return _Box("ready", text, TONES[group.effect])
