"""The one line of a stack file that the program itself writes: `active`, which parks a deployment."""

import re
from pathlib import Path
from typing import Any

import yaml

from ops.errors import OperationError
from ops.places import PROJECT
from spec.catalog import STACK_KEY

_HEADING = re.compile(rf"^(?P<indent> *){re.escape(STACK_KEY)}:[ \t]*(#.*)?$", re.MULTILINE)


def is_active(stack: str, project: Path = PROJECT) -> bool:
    """Whether a stack file lets its deployment run."""
    return _deployment(_path(stack, project).read_text()).get("active", True) is not False


def set_active(stack: str, active: bool, project: Path = PROJECT) -> bool:
    """Parks a deployment in its stack file, or takes that back; every other line stays as it is.

    Returns:
        Whether the file was changed.

    Raises:
        OperationError: the file is not written in the usual way, so that the line's place is not plain.
    """
    path = _path(stack, project)
    text = path.read_text()
    if (_deployment(text).get("active", True) is not False) == active:
        return False
    changed = with_active(text, active)
    expected = {key: value for key, value in _deployment(text).items() if key != "active"}
    found = _deployment(changed)
    if {key: value for key, value in found.items() if key != "active"} != expected or (
        found.get("active", True) is not active
    ):
        word = "false" if not active else "true"
        raise OperationError(f"{path.name}: write `active: {word}` below `{STACK_KEY}` yourself: it is not plain where")
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(changed)
    temporary.replace(path)
    return True


def with_active(text: str, active: bool) -> str:
    """Returns a stack file's text with `active: false` as the deployment's first key, or without it."""
    heading = _HEADING.search(text)
    if heading is None:
        return text
    before, block = text[: heading.end()], text[heading.end() :]
    first = re.search(r"^(?P<indent> +)[^\s#]", block, re.MULTILINE)
    if first is None or len(first["indent"]) <= len(heading["indent"]):
        return text
    line = re.compile(rf"^{first['indent']}active:.*\n?", re.MULTILINE)
    block = line.sub("", block, count=1)
    return before + ("" if active else f"\n{first['indent']}active: false") + block


def _deployment(text: str) -> dict[str, Any]:
    return ((yaml.safe_load(text) or {}).get("config") or {}).get(STACK_KEY) or {}


def _path(stack: str, project: Path) -> Path:
    path = project / f"Pulumi.{stack}.yaml"
    if not path.is_file():
        raise OperationError(f"{path.name} does not exist: there is no stack {stack}")
    return path
