"""Reads one YAML file strictly, and validates plain data as one model."""

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from spec.errors import Problem, SpecificationError, problems_of

Entry = TypeVar("Entry", bound=BaseModel)


class _StrictLoader(yaml.SafeLoader):
    """A safe loader that refuses a key that stands twice in one mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, shown: str) -> Any:
    """Reads one YAML file strictly.

    Args:
        path: the file.
        shown: its name in messages.

    Raises:
        SpecificationError: it is absent, is not UTF-8, starts with a byte-order mark, has carriage returns, is not
            YAML or holds a key twice.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise SpecificationError(
            Problem(shown, "(whole file)", None, "the file does not exist", f"create {shown}")
        ) from None
    if raw.startswith(b"\xef\xbb\xbf"):
        raise _unreadable(shown, "the file starts with a byte-order mark", "save it as UTF-8 without BOM")
    if b"\r" in raw:
        line = raw[: raw.index(b"\r")].count(b"\n") + 1
        raise _unreadable(shown, f"line {line} ends with a carriage return", "save the file with Unix line ends")
    try:
        return yaml.load(raw.decode(), _StrictLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _unreadable(shown, f"not readable as YAML: {error}", "correct the file at that place") from None


def _unreadable(shown: str, rule: str, way_out: str) -> SpecificationError:
    return SpecificationError(Problem(shown, "(whole file)", None, rule, way_out))


def parse(entry: type[Entry], data: Any, shown: str, prefix: str = "") -> Entry:
    """Validates plain data as one model.

    Raises:
        SpecificationError: naming `shown`, the key below `prefix`, the value and the rule.
    """
    try:
        return entry.model_validate(data)
    except ValidationError as error:
        raise SpecificationError(*problems_of(error, shown, prefix)) from None
