"""A review as Markdown that fits a comment of a pull request."""

from collections.abc import Iterable, Sequence

from ops import review_words as words
from ops.review import Outcome, Reviewed
from spec.difference import Change
from spec.review import FindingReview, ImageReview, NodeReview, ResourceStep, Review

MOST_CHARACTERS = 60_000
"""GitHub takes 65,536 in a comment, and whoever posts it adds some."""

_CUT = "\n\n*Cut here: the whole review is in `./fleet review --json` and on the page of `--page`.*\n"


def markdown(reviewed: Reviewed) -> str:
    """Returns the whole review; what is too long for a comment is cut with a note."""
    lines = [f"## {_verdict(reviewed)}"]
    lines += (
        ["", *(f"- **Conflict:** {_text(conflict.text)}" for conflict in reviewed.conflicts)]
        if reviewed.conflicts
        else []
    )
    for outcome in reviewed.outcomes:
        lines += ["", *_stack(outcome)]
    text = "\n".join(lines).rstrip() + "\n"
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - len(_CUT)].rstrip() + _CUT


def _verdict(reviewed: Reviewed) -> str:
    names = ", ".join(outcome.stack for outcome in reviewed.outcomes)
    if reviewed.is_refused:
        return f"⛔ {names}: refused"
    return f"🔁 {names}: what serves is interrupted" if reviewed.interrupts else f"✅ {names}: nothing is interrupted"


def _stack(outcome: Outcome) -> list[str]:
    review = outcome.review
    if review is None:
        return [f"### {outcome.stack}: refused", "", "```", str(outcome.refused), "```"]
    lines = [f"### {review.stack}: {words.headline(review)}", "", f"Release `{words.releases(review)}`"]
    if review.unfinished:
        lines += ["", f"⚠️ {unfinished_line(review)}"]
    lines += ["", *(f"- **{group.name}** {_text(words.group_line(group))}" for group in review.groups)]
    lines += ["", *_table(("node", "rank", "claim", "image", "weights", "memory"), map(_node_row, review.nodes))]
    lines += _group_changes(review) + _node_changes(review.nodes) + _kv(review)
    lines += _image(review.image)
    lines += ["", *(f"- weights: {_text(words.weights_line(one))}" for one in review.weights)]
    lines += _settings(review.settings) + _findings(review.findings) + _resources(review)
    return lines


def unfinished_line(review: Review) -> str:
    """Says that the last `up` did not end ready."""
    return (
        f"The last `up`, of {str(review.unfinished)[:12]}, did not end ready: this compares with the last Release that "
        f"was, and what runs may be neither. `./fleet rollback {review.stack}` takes it back."
    )


def _node_row(node: NodeReview) -> tuple[str, ...]:
    return (
        node.node,
        words.rank_line(node),
        node.claim,
        words.image_cell(node),
        words.weights_cell(node),
        words.node_memory(node),
    )


def _group_changes(review: Review) -> list[str]:
    lines = []
    for group in review.groups:
        if group.changes:
            lines += ["", f"**{group.name}, every rank**", "", *_changes(group.changes)]
    return lines


def _node_changes(nodes: Iterable[NodeReview]) -> list[str]:
    changed = [node for node in nodes if node.changes]
    if not changed:
        return []
    count = sum(len(node.changes) for node in changed)
    lines = ["", f"<details><summary>{count} settings that differ from node to node</summary>", ""]
    for node in changed:
        lines += [f"**{node.node}**", "", *_changes(node.changes), ""]
    return [*lines, "</details>"]


def _changes(changes: Sequence[Change]) -> list[str]:
    return _table(
        ("setting", "before", "after"), ((_code(one.name), _code(one.before), _code(one.after)) for one in changes)
    )


def _kv(review: Review) -> list[str]:
    groups = [group for group in review.groups if group.kv_before or group.kv_after]
    return [
        *([""] if groups else []),
        *(
            f"- KV cache of {group.name}: {words.before_and_after(words.kv(group.kv_before), words.kv(group.kv_after))}"
            if group.kv_before and group.kv_after
            else f"- KV cache of {group.name}: {words.kv(group.kv_after or group.kv_before)}"
            for group in groups
        ),
    ]


def _image(image: ImageReview) -> list[str]:
    lines = ["", f"- image: {_text(words.image_line(image))}"]
    if image.before is None or image.before == image.after:
        return lines
    for step in image.steps:
        if step.what != "same":
            changes = f": {_text('; '.join(step.changes))}" if step.changes else ""
            lines.append(f"  - {step.name} {STEP_WORDS[step.what]}{changes}")
    return lines


STEP_WORDS = {
    "new": "is new",
    "changed": "is changed",
    "follows": "follows from the one before",
    "same": "stays",
    "removed": "is removed",
}


def _settings(changes: Sequence[Change]) -> list[str]:
    return ["", "**Beside the groups**", "", *_changes(changes)] if changes else []


def _findings(findings: Sequence[FindingReview]) -> list[str]:
    lines = []
    for one in findings:
        accepted = f" (accepted: {one.finding.acknowledged})" if one.finding.acknowledged else ""
        rule = one.finding.text.splitlines()[1:2] or [one.finding.text]
        lines.append(f"- rule `{one.finding.rule}`, {one.what}: {_text(rule[0].strip())}{accepted}")
    return ["", *lines] if lines else []


def _resources(review: Review) -> list[str]:
    if review.other_resources is None:
        return ["", "*Pulumi was not asked: this compares two Releases.*"]
    steps = [step for node in review.nodes for step in node.resources] + list(review.other_resources)
    if not steps:
        return ["", "Pulumi would touch nothing."]
    return [
        "",
        f"<details><summary>Pulumi would touch {len(steps)} resources</summary>",
        "",
        *_table(("resource", "operation", "because of"), map(_resource_row, steps)),
        "",
        "</details>",
    ]


def _resource_row(step: ResourceStep) -> tuple[str, ...]:
    return step.name, step.operation, ", ".join(step.because)


def _table(heading: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (heading, ("---",) * len(heading), *(map(_cell, row) for row in rows))]


def _cell(text: str) -> str:
    """Returns text that does not break a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def _text(text: str) -> str:
    """Returns text of which nothing is taken for a tag."""
    return text.replace("<", "&lt;").replace("\n", " ")


def _code(value: str | None) -> str:
    if value is None:
        return words.NOTHING
    fence = "``" if "`" in value else "`"
    return f"{fence}{value}{fence}"
