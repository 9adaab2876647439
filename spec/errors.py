"""How a wrong specification is reported: file, key, value, rule and a way out, one problem a paragraph."""

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with what somebody wrote.

    Attributes:
        file: the file as the reader knows it, relative to the project.
        key: path of the key inside the file, joined with `/`.
        value: what stands there.
        rule: what must hold.
        way_out: what to write or run instead.
    """

    file: str
    key: str
    value: Any
    rule: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.file}: {self.key}: {self.value!r}\n    {self.rule}\n    Way out: {self.way_out}"


class SpecificationError(Exception):
    """Raised when a deployment cannot be planned; its text lists every problem found."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def problems_of(error: ValidationError, file: str, prefix: str = "") -> list[Problem]:
    """Translates what pydantic found into problems of this file, with keys below `prefix`."""
    return [
        Problem(
            file=file,
            key="/".join([*([prefix] if prefix else []), *map(str, detail["loc"])]) or "(whole file)",
            value=_shown_value(detail["input"]),
            rule=_rule(detail["type"], detail["msg"]),
            way_out=_way_out(detail["type"]),
        )
        for detail in error.errors()
    ]


def _shown_value(value: Any) -> Any:
    text = repr(value)
    return value if len(text) <= 200 else f"{text[:200]}..."


def _rule(kind: str, message: str) -> str:
    return {
        "extra_forbidden": "this key is not known here",
        "missing": "this key is required here and is not there",
    }.get(kind, message.removeprefix("Value error, "))


def _way_out(kind: str) -> str:
    return {
        "extra_forbidden": "remove the key, or correct its spelling; docs/stack-file.md lists the keys",
        "missing": "add the key; docs/stack-file.md says what it holds",
    }.get(kind, "give a value that keeps the rule")
