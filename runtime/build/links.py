"""Links that a step makes: they replace nothing but themselves, and lead somewhere."""

from pathlib import Path
from typing import Any

from runtime.build.checks import Check, failed, passed
from runtime.build.errors import BuildError


def place_of(link: dict[str, Any], root: Path) -> Path:
    """Returns where a link is; its folder may be behind links itself."""
    path = root / link["path"].lstrip("/")
    return path.parent.resolve() / path.name


def is_made(step: str, link: dict[str, Any], root: Path) -> bool:
    """Tells whether a link is there already.

    Args:
        step: name of the step, for messages.
        link: path and target, as in spec/chain.py.
        root: of the image.

    Raises:
        BuildError: its target is absent, or something else has its path.
    """
    path = place_of(link, root)
    if not (root / link["target"].lstrip("/")).exists():
        raise BuildError(
            "link-to-nowhere",
            f"{step}: {link['path']}: its target {link['target']} is not in this image\n"
            "Way out: look where this base has it and correct the target, or install it in an earlier step.",
        )
    if not path.is_symlink() and not path.exists():
        return False
    if _leads_to(path) == link["target"]:
        return True
    there = f"a link to {_leads_to(path)}" if path.is_symlink() else "a folder" if path.is_dir() else "a file"
    raise BuildError(
        "in-the-way",
        f"{step}: {link['path']}: {there} is there, and a link replaces nothing but itself\n"
        "Way out: if this base has by itself what the link is for, leave the link out; else choose another path.",
    )


def check_link(link: dict[str, Any], root: Path) -> Check:
    """Checks that a link is in the finished image and leads to what is there."""
    subject, path = f"link {link['path']}", place_of(link, root)
    if _leads_to(path) != link["target"]:
        found = _leads_to(path) or ("no link" if path.exists() else "absent")
        return failed(subject, found, link["target"], "a later step or package replaced it: make the link after that")
    if not (root / link["target"].lstrip("/")).exists():
        return failed(subject, "leads to nothing", link["target"], "a later step removed its target: reorder the steps")
    return passed(subject, link["target"])


def _leads_to(path: Path) -> str | None:
    return str(path.readlink()) if path.is_symlink() else None
