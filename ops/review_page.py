"""A review as one HTML page without script: the graph of each group, then what differs."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from ops import review_words as words
from ops.markup import Child, Node, document, element
from ops.review import Outcome, Reviewed
from ops.review_graph import TONES, group_graph
from ops.review_markdown import STEP_WORDS, unfinished_line
from spec.difference import Change
from spec.review import MEMORY_PARTS, FindingReview, GroupReview, ImageReview, NodeReview, Review

_STYLE = Path(__file__).with_name("review_page.css")


def page(reviewed: Reviewed) -> str:
    """Returns the page."""
    title = f"Review of {', '.join(outcome.stack for outcome in reviewed.outcomes)}"
    return document(
        element(
            "html",
            element(
                "head",
                element("meta", charset="utf-8"),
                element("meta", name="viewport", content="width=device-width, initial-scale=1"),
                element("title", title),
                element("style", _STYLE.read_text()),
            ),
            element("body", element("h1", title, " ", _badge(reviewed)), *_body(reviewed)),
            lang="en",
        )
    )


def _badge(reviewed: Reviewed) -> Node:
    if reviewed.is_refused:
        return element("span", "refused", class_="badge stop")
    if reviewed.interrupts:
        return element("span", "interrupts what serves", class_="badge restart")
    return element("span", "nothing is interrupted", class_="badge same")


def _body(reviewed: Reviewed) -> list[Node]:
    conflicts = [element("p", conflict.text, class_="alarm") for conflict in reviewed.conflicts]
    return [*conflicts, *(_stack(outcome) for outcome in reviewed.outcomes)]


def _stack(outcome: Outcome) -> Node:
    review = outcome.review
    if review is None:
        return element(
            "section", element("h2", f"{outcome.stack}: refused"), element("pre", str(outcome.refused), class_="alarm")
        )
    return element(
        "section",
        element("h2", f"{review.stack}: {words.headline(review)}"),
        element("p", f"Release {words.releases(review)} on cluster {review.cluster}", class_="quiet"),
        element("p", unfinished_line(review), class_="alarm") if review.unfinished else None,
        element("div", *(_group(review, group) for group in review.groups), class_="groups"),
        _legend(),
        element("h3", "Nodes"),
        _table(
            ("node", "rank", "claim", "image", "weights", "memory"),
            (_node_row(node) for node in review.nodes),
        ),
        *_node_changes(review.nodes),
        element("h3", "Image and weights"),
        *_image(review.image),
        element("ul", *(element("li", words.weights_line(one)) for one in review.weights)),
        *_settings(review.settings),
        *_findings(review.findings),
        *_resources(review),
    )


def _group(review: Review, group: GroupReview) -> Node:
    return element(
        "div",
        element("h3", f"Group {group.name} ", element("span", group.effect, class_=f"badge {TONES[group.effect]}")),
        element("p", words.group_line(group)),
        element("div", group_graph(review, group), class_="graph"),
        element("p", "KV cache: ", _kv(group)) if group.kv_before or group.kv_after else None,
        _changes(group.changes) if group.changes else None,
    )


def _kv(group: GroupReview) -> str:
    if group.kv_before and group.kv_after:
        return words.before_and_after(words.kv(group.kv_before), words.kv(group.kv_after))
    return words.kv(group.kv_after or group.kv_before)


def _legend() -> Node:
    parts = [
        element("span", element("i", class_=f"swatch part{number}"), f" {name} ")
        for number, name in enumerate(MEMORY_PARTS)
    ]
    return element(
        "p",
        "Memory of a node: ",
        *parts,
        element("span", element("i", class_="swatch free"), " available"),
        class_="quiet legend",
    )


def _node_row(node: NodeReview) -> tuple[Child, ...]:
    return (
        element("b", node.node),
        words.rank_line(node),
        node.claim,
        words.image_cell(node),
        words.weights_cell(node),
        words.node_memory(node),
    )


def _node_changes(nodes: Iterable[NodeReview]) -> list[Node]:
    return [
        element("details", element("summary", f"{node.node}: {len(node.changes)} settings of its own differ"), changes)
        for node in nodes
        if node.changes and (changes := _changes(node.changes)) is not None
    ]


def _changes(changes: Sequence[Change]) -> Node:
    return _table(
        ("setting", "before", "after"),
        ((element("code", one.name), _value(one.before), _value(one.after)) for one in changes),
    )


def _value(value: str | None) -> Child:
    return words.NOTHING if value is None else element("code", value)


def _image(image: ImageReview) -> list[Node]:
    steps = [step for step in image.steps if step.what != "same"] if image.before not in (None, image.after) else []
    return [
        element("p", words.image_line(image)),
        _table(
            ("step", "", "what differs in it"),
            ((element("code", step.name), STEP_WORDS[step.what], "; ".join(step.changes)) for step in steps),
        )
        if steps
        else element("span"),
    ]


def _settings(changes: Sequence[Change]) -> list[Node]:
    return [element("h3", "Beside the groups"), _changes(changes)] if changes else []


def _findings(findings: Sequence[FindingReview]) -> list[Node]:
    if not findings:
        return []
    return [
        element("h3", "Rules"),
        *(
            element(
                "details",
                element("summary", element("code", one.finding.rule), f" {one.what}{_accepted(one)}"),
                element("pre", one.finding.text),
            )
            for one in findings
        ),
    ]


def _accepted(one: FindingReview) -> str:
    return f", accepted: {one.finding.acknowledged}" if one.finding.acknowledged else ""


def _resources(review: Review) -> list[Node]:
    if review.other_resources is None:
        return [element("p", "Pulumi was not asked: this compares two Releases.", class_="quiet")]
    placed = [(node.node, step) for node in review.nodes for step in node.resources]
    steps = [*placed, *((words.NOTHING, step) for step in review.other_resources)]
    if not steps:
        return [element("p", "Pulumi would touch nothing.", class_="quiet")]
    return [
        element(
            "details",
            element("summary", f"Pulumi would touch {len(steps)} resources"),
            _table(
                ("node", "resource", "operation", "because of"),
                ((node, element("code", one.name), one.operation, ", ".join(one.because)) for node, one in steps),
            ),
        )
    ]


def _table(heading: tuple[str, ...], rows: Iterable[tuple[Child, ...]]) -> Node:
    return element(
        "div",
        element(
            "table",
            element("thead", element("tr", *(element("th", text) for text in heading))),
            element("tbody", *(element("tr", *(element("td", cell) for cell in row)) for row in rows)),
        ),
        class_="scroll",
    )
