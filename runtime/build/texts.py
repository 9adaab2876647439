"""What must and must not stand in files after the patches: assertions, markers and old anchors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime.build.checks import Check, failed, passed

Reader = Callable[[Path], "str | None"]


def read_text(path: Path) -> str | None:
    """Returns a file's text, none where there is no such file; bytes that are not UTF-8 survive a round trip."""
    return path.read_bytes().decode("utf-8", "surrogateescape") if path.is_file() else None


def path_of(entry: dict[str, Any], packages: Path, root: Path) -> Path:
    """Returns where an edit's or assertion's file is.

    Args:
        entry: file, and folder where that is not the packages folder.
        packages: the packages folder.
        root: of the image.
    """
    return (root / entry["folder"].lstrip("/") if "folder" in entry else packages) / entry["file"]


def check_assertion(
    assertion: dict[str, Any], packages: Path, root: Path = Path("/"), read: Reader = read_text
) -> Check:
    """Checks one assertion of a step.

    Args:
        assertion: file and either contains and count, or absent; as in spec/chain.py. Its folder, if it is another one.
        packages: the packages folder.
        root: of the image.
        read: returns the text of a file, none where it does not exist.
    """
    file = assertion["file"]
    text = read(path_of(assertion, packages, root))
    if text is None:
        return failed(f"assert {file}", "no such file", "the file exists", "look where this version has the code")
    wanted = assertion.get("contains")
    if wanted is None:
        unwanted = assertion["absent"]
        return _counted(f"assert {file} without", unwanted, text.count(unwanted), 0)
    return _counted(f"assert {file} with", wanted, text.count(wanted), assertion["count"])


def check_edit(edit: dict[str, Any], packages: Path, root: Path = Path("/")) -> Check:
    """Checks that an edit's marker is in a file and that its anchor is gone.

    Args:
        edit: step, file, marker (none where a later step replaced it), anchor and leftover (how often the anchor may
            stand there, because a replacement contains it). Its folder, if it is another one.
        packages: the packages folder.
        root: of the image.
    """
    subject = f"edit of {edit['step']} in {edit['file']}"
    text = read_text(path_of(edit, packages, root))
    if text is None:
        return failed(subject, "no such file", "the patched file", "a later step removed it: reorder the steps")
    if edit["marker"] is not None and edit["marker"] not in text:
        return failed(
            subject,
            f"marker {edit['marker']!r} is missing",
            "marker present",
            "a later step or package overwrote the file",
        )
    found = text.count(edit["anchor"])
    if found > edit["leftover"]:
        return failed(
            subject,
            f"anchor {edit['anchor']!r} stands there {found} times",
            f"at most {edit['leftover']}",
            "a later step or package brought the unpatched text back: patch after it",
        )
    return passed(subject, "marker present, anchor gone")


def _counted(subject: str, text: str, found: int, expected: int) -> Check:
    shown = f"{subject} {text!r}"
    if found == expected:
        return passed(shown, f"{found} times")
    return failed(
        shown, f"{found} times", f"{expected} times", "this base is not what the step was written for: compare the file"
    )
