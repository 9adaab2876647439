"""Anchored edits of one text: pure functions."""

from dataclasses import dataclass

from runtime.build.errors import BuildError

APPLIED = "applied"
ALREADY_PATCHED = "already patched"


@dataclass(frozen=True)
class Edit:
    """One anchored edit, as spec/chain.py describes it.

    Attributes:
        file: relative to the packages folder.
        anchor: the text that is replaced.
        count: how often it must stand there.
        replacement: what stands there afterwards.
        marker: the part of the replacement by which a patched file is known.
    """

    file: str
    anchor: str
    count: int
    replacement: str
    marker: str

    @property
    def leftover(self) -> int:
        """How often the anchor may stand in a patched file: a replacement can contain it."""
        return self.count * self.replacement.count(self.anchor)


def apply_edit(step: str, text: str, edit: Edit) -> tuple[str, str]:
    """Returns the edited text and what was done.

    Args:
        step: name of the step, for messages.
        text: of the file.
        edit: what to do with it.

    Raises:
        BuildError: the anchor is missing, stands there less or more often than expected, or the file is half patched.
    """
    found = text.count(edit.anchor)
    if edit.marker in text:
        if found > edit.leftover:
            raise _half_patched(step, text, edit, found)
        return text, ALREADY_PATCHED
    if found == 0:
        raise BuildError(
            "anchor-missing",
            f"{step}: {edit.file}: the anchor is missing, it must stand there {_times(edit.count)}:\n"
            f"{_quoted(edit.anchor)}\n"
            "Way out: this base has another version of the file. If upstream has fixed it, assert that instead of "
            "patching; else find the new place and write its text as the anchor.",
        )
    if found < edit.count:
        raise BuildError(
            "anchor-too-few",
            f"{step}: {edit.file}: the anchor stands there only {_times(found)} (lines {_lines(text, edit.anchor)}) "
            f"instead of {_times(edit.count)}:\n{_quoted(edit.anchor)}\n"
            "Way out: look at the places that are left and correct the anchor or its count.",
        )
    if found > edit.count:
        raise BuildError(
            "anchor-doubled",
            f"{step}: {edit.file}: the anchor is ambiguous, it stands there {_times(found)} "
            f"(lines {_lines(text, edit.anchor)}) instead of {_times(edit.count)}:\n{_quoted(edit.anchor)}\n"
            "Way out: lengthen the anchor until it names one place, or raise its count if all of them are meant.",
        )
    return text.replace(edit.anchor, edit.replacement), APPLIED


def apply_edits(step: str, text: str, edits: list[Edit]) -> tuple[str, list[str]]:
    """Applies the edits of one file in order and makes sure that a second run would find all of them done.

    Returns:
        The edited text, and for each edit what was done.

    Raises:
        BuildError: an edit cannot be applied, or a later one undoes it.
    """
    outcomes: list[str] = []
    for edit in edits:
        text, outcome = apply_edit(step, text, edit)
        outcomes.append(outcome)
    for edit in edits:
        if edit.marker not in text or text.count(edit.anchor) > edit.leftover:
            raise BuildError(
                "edit-undone",
                f"{step}: {edit.file}: after all edits of the step this one does not hold: its marker must be there "
                f"and its anchor gone:\n{_quoted(edit.marker)}\n"
                "Way out: another edit of the step writes the anchor or removes the marker; join the two.",
            )
    return text, outcomes


def _half_patched(step: str, text: str, edit: Edit, found: int) -> BuildError:
    return BuildError(
        "half-patched",
        f"{step}: {edit.file}: the file is half patched: the marker is there, but so is the anchor, {_times(found)} "
        f"(lines {_lines(text, edit.anchor)}):\n{_quoted(edit.anchor)}\n"
        "Way out: start from the base again; if the base itself contains the marker, choose another one.",
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _quoted(text: str) -> str:
    return "\n".join(f"    | {line}" for line in text.splitlines())


def _lines(text: str, anchor: str) -> str:
    numbers: list[str] = []
    start = text.find(anchor)
    while start >= 0:
        numbers.append(str(text.count("\n", 0, start) + 1))
        start = text.find(anchor, start + len(anchor))
    return ", ".join(numbers)
