"""Prints the flag table of a vLLM: what `vllm serve` of that very version accepts, taken from its own parser.

Runs with a vLLM's own Python, where `import vllm` works, and needs nothing else:

    python3 tools/dump_flags.py > catalog/flags/vllm-VERSION.json
    docker run --rm --entrypoint python3 -v "$PWD/tools:/tools:ro" IMAGE /tools/dump_flags.py

Without a GPU, set VLLM_TARGET_DEVICE=cpu. Nothing of the table is written by hand: names, hidden names, arity and
choices are read from the parser's actions, and the kind of a value is found by handing the action's own converter a few
texts. `spec.flags` reads the result.
"""

import argparse
import collections
import enum
import importlib
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

FORMAT = 1
PARSER_MODULES = (
    "vllm.entrypoints.common.cli_args",  # 0.33
    "vllm.entrypoints.launchers.cli_args",  # 0.29 to 0.32
    "vllm.entrypoints.openai.cli_args",  # 0.28 and before
)
NAMED_ARITIES = {None: "one", 0: "none", "?": "optional", "+": "several", "*": "any"}
NEGATIONS = ("--no-", "--disable-", "--enable-")


def serve_parser() -> argparse.ArgumentParser:
    """Returns the parser of `vllm serve`, wherever this version keeps it."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # pyright: ignore[reportMissingImports]

    for name in PARSER_MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(str(error.name)):
                raise
            continue
        return module.make_arg_parser(FlexibleArgumentParser())
    raise SystemExit(f"this vLLM has none of {', '.join(PARSER_MODULES)}: add the module that has make_arg_parser")


def table(parser: argparse.ArgumentParser, version: str) -> dict[str, Any]:
    """Returns the table of a parser as plain data."""
    accepted: dict[argparse.Action, list[str]] = collections.defaultdict(list)
    for name, action in parser._option_string_actions.items():
        accepted[action].append(name)
    groups = {action: group.title for group in parser._action_groups for action in group._group_actions}
    entries = (_entry(action, names, groups.get(action)) for action, names in accepted.items())
    return {"format": FORMAT, "vllm_version": version, "flags": dict(sorted(entries))}


def _entry(action: argparse.Action, accepted: list[str], group: str | None) -> tuple[str, dict[str, Any]]:
    visible = list(action.option_strings)
    switched_off = _negations(action, accepted)
    long_names = [name for name in visible if name.startswith("--") and name not in switched_off]
    found = {
        "takes_value": NAMED_ARITIES.get(action.nargs, action.nargs),
        "kind": _kind(action),
        "choices": [choice for choice in action.choices or () if choice is not None] or None,
        "keys": _object_keys(action),
        "repeatable": isinstance(action, argparse._AppendAction) or None,
        "aliases": long_names[1:],
        "short": [name for name in visible if not name.startswith("--")],
        "negations": [name for name in visible if name in switched_off],
        "hidden": [name for name in accepted if name not in visible],
        "default": _plain_default(action),
        "group": group,
    }
    return long_names[0], {key: value for key, value in found.items() if value not in (None, [])}


def _negations(action: argparse.Action, accepted: Iterable[str]) -> set[str]:
    """Returns the names that set the flag to false: what the action itself does when called by that name."""
    if not isinstance(action, argparse.BooleanOptionalAction):
        return set()
    return {name for name in accepted if name.startswith(NEGATIONS) and _value_set_by(action, name) is False}


def _value_set_by(action: argparse.Action, name: str) -> Any:
    namespace = argparse.Namespace()
    action(argparse.ArgumentParser(), namespace, [], name)
    return getattr(namespace, action.dest)


def _kind(action: argparse.Action) -> str | None:
    """Returns what texts a value may have, by asking the converter; none for a flag without a value."""
    if action.nargs == 0:
        return None
    if not type(action).__module__.startswith("argparse"):
        return type(action).__name__
    if action.type is None:
        return "text"
    return _kind_of(_attempt(action.type))


def _kind_of(convert: Callable[[str], Any]) -> str:
    if convert("Some-Text") == "some_text":
        return "name"
    if isinstance(convert("Some-Text"), list):
        return "list"
    if convert("Some-Text") is not REFUSED:
        return "text or object" if isinstance(convert('{"a": 1}'), dict) else "text"
    if convert("[1]") is not REFUSED:
        return "json"
    if convert("1") is REFUSED:
        return "object"
    if convert("1.5") is not REFUSED:
        return "number"
    if convert("1k") is REFUSED:
        return "integer"
    return "size" if convert("auto") is REFUSED else "size or auto"


def _object_keys(action: argparse.Action) -> list[str] | None:
    """Returns the keys that a JSON object of this flag may have, where vLLM reads it into a configuration class."""
    if action.type is None or action.nargs == 0 or _kind(action) != "object":
        return None
    return sorted(getattr(_attempt(action.type)("{}"), "__dataclass_fields__", ())) or None


REFUSED = object()


def _attempt(convert: Any) -> Callable[[str], Any]:
    def attempt(text: str) -> Any:
        try:
            return convert(text)
        except Exception:  # noqa: BLE001 - whatever it raises, it refuses the text
            return REFUSED

    return attempt


def _plain_default(action: argparse.Action) -> Any:
    """Returns the default as JSON data, for people; none for the many fields of a configuration class."""
    value = action.default.value if isinstance(action.default, enum.Enum) else action.default
    if isinstance(value, set | frozenset):
        value = sorted(value)
    plain = value is None or isinstance(value, bool | int | float | str | list | dict)
    return value if plain and value != argparse.SUPPRESS and _kind(action) != "object" else None


def written(data: dict[str, Any]) -> str:
    """Returns the table as JSON text with one flag a line, so that two versions compare line by line."""
    flags = data["flags"].items()
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in flags)
    head = "".join(f"{json.dumps(key)}: {json.dumps(data[key])},\n" for key in ("format", "vllm_version"))
    return f'{{\n{head}"flags": {{\n{lines}\n}}\n}}\n'


def main() -> None:
    """Prints the table of the vLLM that this Python imports; what vLLM logs meanwhile goes to standard error."""
    out, sys.stdout = sys.stdout, sys.stderr
    import vllm  # pyright: ignore[reportMissingImports]

    out.write(written(table(serve_parser(), vllm.__version__)))


if __name__ == "__main__":
    main()
