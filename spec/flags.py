"""The flags that a vLLM of a known version takes, and what is wrong with a list of arguments for it.

A table is data (`catalog/flags/vllm-VERSION.json`), printed by `tools/dump_flags.py` from that vLLM's own parser. The
check is stricter than the parser on purpose: whatever is accepted here, the parser accepts
(tests/lab/test_flags_parser.py), while spellings that only work by luck are refused: abbreviations, which argparse
completes; a flag given twice, where the last one silently wins; dotted and underscored forms (facts/vllm-patches.md 4).
What no table holds are the types inside a JSON object: its keys are checked where vLLM has a class for it, no more.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from spec.base import Strict
from spec.errors import Problem, SpecificationError, problems_of

SYSTEM_FLAGS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "--model": ("follows from the stack's model", "choose another `model` in the stack file"),
        "--served-model-name": ("follows from the model's entry", "change `served_name` in catalog/models/"),
        "--tensor-parallel-size": ("follows from the nodes of the group", "list more or fewer nodes in `groups`"),
        "--pipeline-parallel-size": ("follows from the plan of the group", "remove the flag"),
        "--nnodes": ("follows from the nodes of the group", "list more or fewer nodes in `groups`"),
        "--node-rank": ("follows from a node's place in its group", "reorder the nodes in `groups`, the head first"),
        "--master-addr": ("is the head's own fabric address", "correct the head's `rails` in catalog/clusters/"),
        "--master-port": ("follows from the stack's `master_port`", "set `master_port` in the stack file"),
        "--host": ("is where every head answers", "remove the flag"),
        "--port": ("follows from the stack's `port`", "set `port` in the stack file"),
        "--headless": ("follows from the rank: every rank but the head has it", "remove the flag"),
        "--distributed-executor-backend": ("follows from the stack's executor", "set `executor` in the stack file"),
        "--api-key": (
            "would put a key where `ps` and `docker inspect` show it",
            "give the key as a secret; the head gets it as VLLM_API_KEY",
        ),
        "--config": ("would bring arguments that no review saw", "write the file's flags in the stack file"),
        "--help": ("prints a text and ends", "remove the flag"),
    }
)
"""Flags that a person may not set: why, and what to do instead."""

_ANY_NUMBER_OF_VALUES = ("several", "any")


class Flag(Strict):
    """One flag of a vLLM.

    Attributes:
        takes_value: how many words follow: none, one, at most one (optional), one or more (several), any, or a number.
        kind: what a value may be, by the converter of vLLM's parser; a name in capitals is an action of vLLM's own.
        choices: the only values, where there is such a list.
        keys: keys that a JSON object may have, where vLLM reads it into a configuration class.
        repeatable: whether each further use adds a value instead of replacing the first.
        aliases: further full names.
        short: one-dash names.
        negations: names that switch it off.
        hidden: names that the parser still accepts but no longer shows: the negations of earlier versions.
        default: for people; configuration classes have none here.
        group: heading of `vllm serve --help`, by which frontend flags are told from engine flags.
    """

    takes_value: Literal["none", "one", "optional", "several", "any"] | int
    kind: str = "text"
    choices: tuple[str | int | float, ...] = ()
    keys: tuple[str, ...] = ()
    repeatable: bool = False
    aliases: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    negations: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    default: Any = None
    group: str | None = None


@dataclass(frozen=True)
class FlagProblem:
    """One thing that is wrong with an argument.

    Attributes:
        id: which rule, for good.
        flag: the word as it was written, without its value.
        value: the value as it was written; none where there is none.
        rule: what must hold.
        way_out: what to write instead.
    """

    id: str
    flag: str
    value: str | None
    rule: str
    way_out: str

    def __str__(self) -> str:
        written = self.flag if self.value is None else f"{self.flag} {self.value}"
        return f"{written}: {self.rule}. Way out: {self.way_out}"

    def problem(self, file: str, key: str) -> Problem:
        """Returns it as a problem of the file that the arguments were written in."""
        written = self.flag if self.value is None else f"{self.flag} {self.value}"
        return Problem(file, key, written, self.rule, self.way_out)


@dataclass(frozen=True)
class _Use:
    """One flag word of a list of arguments with the words that belong to it.

    Attributes:
        written: the flag word, without an inline value.
        values: its values.
        inline: whether its value was written with `=`, after which no further one can follow.
    """

    written: str
    values: tuple[str, ...]
    inline: bool = False

    def problem(self, identity: str, rule: str, way_out: str, value: str | None = None) -> FlagProblem:
        shown = value if value is not None else " ".join(self.values) or None
        return FlagProblem(identity, self.written, shown, rule, way_out)


@dataclass(frozen=True)
class _Known:
    """A name that the table has.

    Attributes:
        name: the flag's first name.
        negated: whether this name switches it off.
        hidden: whether the parser no longer shows this name.
    """

    name: str
    flag: Flag
    negated: bool
    hidden: bool


class FlagTable:
    """All flags of one version of vLLM."""

    def __init__(self, version: str, flags: Mapping[str, Flag], elsewhere: Mapping[str, Mapping[str, str]]) -> None:
        """Indexes the flags by every name.

        Args:
            version: of vLLM.
            flags: by first name.
            elsewhere: for each other known version its full names, each with the first name of its flag.
        """
        self.version = version
        self.flags = MappingProxyType(dict(flags))
        self._elsewhere = elsewhere
        self._known = {known_name: known for name, flag in flags.items() for known_name, known in _names(name, flag)}
        self._short = {short: name for name, flag in flags.items() for short in flag.short}

    def check(self, arguments: Sequence[str], *, rendered: bool = False) -> list[FlagProblem]:
        """Returns what is wrong with the arguments behind `vllm serve MODEL`, in their order; nothing if all is well.

        Args:
            arguments: argv words.
            rendered: whether they are a whole rendered command line, which has the system's flags, instead of what a
                person chose.
        """
        stray, uses = _split(arguments)
        problems = [_stray_problem(word) for word in stray]
        for use in uses:
            problems += self._problems_of(use, rendered)
        return problems + list(self._repetitions(uses))

    def _problems_of(self, use: _Use, rendered: bool) -> Iterator[FlagProblem]:
        known = self._known.get(use.written)
        if known is None:
            yield self._unknown(use)
        elif known.name in SYSTEM_FLAGS and not rendered:
            yield _system_problem(use, *SYSTEM_FLAGS[known.name])
        elif known.hidden:
            yield use.problem(
                "flag-renamed",
                f"vLLM {self.version} has renamed this negation; it still takes the old name but hides it",
                f"write {known.flag.negations[0]}",
            )
        else:
            yield from _value_problems(use, known)

    def _unknown(self, use: _Use) -> FlagProblem:
        """Says why a name is not in the table; the first explanation that fits."""
        explanations = (self._as_short, self._as_dotted, self._as_underscored, self._as_abbreviated, self._as_elsewhere)
        return next((found for explain in explanations if (found := explain(use))), None) or self._as_misspelt(use)

    def _as_short(self, use: _Use) -> FlagProblem | None:
        if use.written.startswith("--"):
            return None
        name = self._short.get(use.written)
        way_out = f"write {name}" if name else "write a full name, with two dashes"
        return use.problem("flag-short", "a one-dash form: only full names are written here", way_out)

    def _as_dotted(self, use: _Use) -> FlagProblem | None:
        name, dot, key = use.written.partition(".")
        if not dot or name not in self._known:
            return None
        return use.problem(
            "flag-dotted",
            "a dotted form, which vLLM's parser puts together to one JSON object",
            f"write {name} with the whole object, {{{json.dumps(key.rstrip('+'))}: ...}}",
        )

    def _as_underscored(self, use: _Use) -> FlagProblem | None:
        dashed = "--" + use.written.removeprefix("--").replace("_", "-")
        if dashed == use.written or dashed not in self._known:
            return None
        return use.problem("flag-underscored", "a flag is written with dashes", f"write {dashed}")

    def _as_abbreviated(self, use: _Use) -> FlagProblem | None:
        longer = sorted(name for name in self._known if name.startswith(use.written))
        if not longer or len(use.written) < len("--x"):
            return None
        meaning = (
            f"vLLM's parser would complete it to {longer[0]}, until another flag begins alike"
            if len(longer) == 1
            else f"vLLM {self.version} has {len(longer)} flags that begin so"
        )
        return use.problem("flag-abbreviated", f"an abbreviation: {meaning}", f"write {_either(longer)}")

    def _as_elsewhere(self, use: _Use) -> FlagProblem | None:
        versions = [version for version, names in self._elsewhere.items() if use.written in names]
        if not versions:
            return None
        first_name = self._elsewhere[versions[0]][use.written]
        same = self._known.get(first_name)
        other_name = same.flag.negations[0] if same and same.flag.negations and first_name != use.written else None
        return use.problem(
            "flag-other-version",
            f"vLLM {self.version} has no such flag; it is one of {' and '.join(versions)}",
            f"write {other_name}" if other_name else f"remove it, or use an image with vLLM {_either(versions)}",
        )

    def _as_misspelt(self, use: _Use) -> FlagProblem:
        visible = [name for name, known in self._known.items() if not known.hidden]
        nearest = difflib.get_close_matches(use.written, visible, n=1)
        return use.problem(
            "flag-unknown",
            f"vLLM {self.version} has no such flag",
            f"did you mean {nearest[0]}?" if nearest else f"look it up in catalog/flags/vllm-{self.version}.json",
        )

    def _repetitions(self, uses: Iterable[_Use]) -> Iterator[FlagProblem]:
        first: dict[str, _Use] = {}
        for use in uses:
            known = self._known.get(use.written)
            if known is None or known.flag.repeatable:
                continue
            before = first.setdefault(known.name, use)
            if before is not use:
                yield _repetition(before, use)


def flag_tables(parsed: Mapping[str, Any]) -> dict[str, FlagTable]:
    """Makes the tables of all known versions from parsed JSON.

    Args:
        parsed: what the files of catalog/flags/ hold, by their name in messages.

    Returns:
        The tables by vLLM version.

    Raises:
        SpecificationError: a file is not a table, or two are of one version.
    """
    flags = dict(_parsed_table(data, shown) for shown, data in sorted(parsed.items()))
    if len(flags) != len(parsed):
        raise SpecificationError(
            Problem(
                "catalog/flags/", "(files)", sorted(parsed), "two tables are of one vLLM version", "remove one of them"
            )
        )
    names = {version: {name: known.name for name, known in _all_names(found)} for version, found in flags.items()}
    return {
        version: FlagTable(version, found, {other: names[other] for other in names if other != version})
        for version, found in flags.items()
    }


def table_of(tables: Mapping[str, FlagTable], version: str, file: str, key: str) -> FlagTable:
    """Returns the table of a version.

    Raises:
        SpecificationError: there is none, naming the file and key that ask for this version.
    """
    if version in tables:
        return tables[version]
    raise SpecificationError(
        Problem(
            file,
            key,
            version,
            f"no table of this vLLM's flags is there to check arguments by; there is {', '.join(sorted(tables))}",
            f"run tools/dump_flags.py in the image and keep its output as catalog/flags/vllm-{version}.json",
        )
    )


def check_without_table(arguments: Sequence[str], system_flags: Mapping[str, tuple[str, str]]) -> list[FlagProblem]:
    """Returns what is wrong with arguments of an engine that has no table here, as far as their form tells.

    Args:
        arguments: argv words that a person chose.
        system_flags: full names that follow from the plan, as in `SYSTEM_FLAGS`.
    """
    stray, uses = _split(arguments)
    problems = [_stray_problem(word) for word in stray]
    first: dict[str, _Use] = {}
    for use in uses:
        if not use.written.startswith("--"):
            problems.append(use.problem("flag-short", "a one-dash form", "write a full name, with two dashes"))
        elif use.written in system_flags:
            problems.append(_system_problem(use, *system_flags[use.written]))
        elif first.setdefault(use.written, use) is not use:
            problems.append(_repetition(first[use.written], use))
        elif "" in use.values:
            problems.append(_empty_problem(use))
    return problems


def _parsed_table(data: Any, shown: str) -> tuple[str, dict[str, Flag]]:
    if not isinstance(data, dict) or data.get("format") != 1 or not isinstance(data.get("vllm_version"), str):
        raise SpecificationError(
            Problem(shown, "format", None, "not a flag table of format 1", "print it anew with tools/dump_flags.py")
        )
    try:
        return data["vllm_version"], TypeAdapter(dict[str, Flag]).validate_python(data.get("flags"))
    except ValidationError as error:
        raise SpecificationError(*problems_of(error, shown, "flags")) from None


def _names(name: str, flag: Flag) -> Iterator[tuple[str, _Known]]:
    for own in (name, *flag.aliases):
        yield own, _Known(name, flag, negated=False, hidden=False)
    for negation in flag.negations:
        yield negation, _Known(name, flag, negated=True, hidden=False)
    for hidden in flag.hidden:
        yield hidden, _Known(name, flag, negated=True, hidden=True)


def _all_names(flags: Mapping[str, Flag]) -> Iterator[tuple[str, _Known]]:
    for name, flag in flags.items():
        yield from ((known_name, known) for known_name, known in _names(name, flag) if not known.hidden)


def _split(arguments: Sequence[str]) -> tuple[list[str], list[_Use]]:
    """Splits argv words into those that belong to no flag, and the flags with their values."""
    stray: list[str] = []
    uses: list[_Use] = []
    for word in arguments:
        if _is_flag_word(word):
            name, inline, value = word.partition("=")
            uses.append(_Use(name, (value,), inline=True) if inline else _Use(name, ()))
        elif uses and not uses[-1].inline:
            uses[-1] = _Use(uses[-1].written, (*uses[-1].values, word))
        else:
            stray.append(word)
    return stray, uses


def _is_flag_word(word: str) -> bool:
    """Whether argparse takes the word for a flag: it begins with a dash and is no whole number.

    A negative decimal number is none for argparse, but vLLM's own pass before it takes -0.5 for a dotted flag.
    """
    return word.startswith("-") and not re.fullmatch(r"-\d+", word)


def _value_problems(use: _Use, known: _Known) -> Iterator[FlagProblem]:
    flag = known.flag
    wrong_number = _wrong_number_of_values(use, "none" if known.negated else flag.takes_value)
    if wrong_number:
        yield wrong_number
        return
    for value in use.values:
        if not value:
            yield _empty_problem(use)
        elif flag.choices and value not in map(str, flag.choices):
            yield _not_a_choice(use, value, flag.choices)
        elif broken := _KINDS.get(flag.kind, _unknown_kind)(value, flag):
            yield use.problem("flag-value", *broken, value)


def _wrong_number_of_values(use: _Use, takes_value: str | int) -> FlagProblem | None:
    if takes_value == "none":
        if not use.values:
            return None
        return use.problem("flag-takes-no-value", "takes no value", f"write {use.written} alone, or leave it out")
    if not use.values and takes_value not in ("optional", "any"):
        return use.problem(
            "flag-without-value",
            "needs a value",
            f"write {use.written} and a value; one that begins with a dash is written {use.written}=VALUE",
        )
    most = takes_value if isinstance(takes_value, int) else 1
    if takes_value in _ANY_NUMBER_OF_VALUES or len(use.values) == most or not use.values:
        return None
    return use.problem("flag-values", f"takes {most} value(s), not {len(use.values)}", "remove what does not belong")


def _not_a_choice(use: _Use, value: str, choices: Sequence[Any]) -> FlagProblem:
    known = [str(choice) for choice in choices]
    nearest = difflib.get_close_matches(value.lower().replace("-", "_"), known, n=1)
    return use.problem(
        "flag-choice",
        f"not one of: {', '.join(known)}",
        f"write {nearest[0]}" if nearest else "write one of them",
        value,
    )


def _stray_problem(word: str) -> FlagProblem:
    return FlagProblem("flag-stray", word, None, "belongs to no flag", "remove it, or write its flag before it")


def _empty_problem(use: _Use) -> FlagProblem:
    return use.problem("flag-empty", "its value is empty", f"write a value, or leave {use.written} out")


def _system_problem(use: _Use, reason: str, way_out: str) -> FlagProblem:
    return use.problem("flag-system", f"belongs to the system: it {reason}", way_out)


def _repetition(before: _Use, use: _Use) -> FlagProblem:
    if before.written == use.written:
        return use.problem("flag-twice", "stands twice; vLLM silently takes the last one", "keep one of them")
    return use.problem(
        "flag-contradiction",
        f"stands beside {before.written}, which sets the same; vLLM silently takes the last one",
        "keep one of them",
    )


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


_Broken = tuple[str, str] | None
"""The rule that a value breaks with the way out; none for a value that is fine."""
_Check = Callable[[str, Flag], _Broken]


def _pattern(pattern: str, rule: str, way_out: str) -> _Check:
    """Returns a check that every value must match."""
    return lambda value, _: None if re.fullmatch(pattern, value, re.ASCII) else (rule, way_out)


def _text(_value: str, _flag: Flag) -> _Broken:
    return None


def _json(value: str, _flag: Flag) -> _Broken:
    try:
        json.loads(value, parse_constant=_refuse_constant, object_pairs_hook=_object_of_unique_keys)
    except ValueError as error:
        return f"not JSON: {error}", "write JSON, its keys and texts in double quotes"
    return None


def _object(value: str, flag: Flag) -> _Broken:
    broken = _json(value, flag)
    if broken:
        return broken
    found = json.loads(value)
    if not isinstance(found, dict):
        return "not a JSON object", "write an object, in braces"
    unknown = next((key for key in found if flag.keys and key not in flag.keys), None)
    if unknown is None:
        return None
    nearest = difflib.get_close_matches(unknown, flag.keys, n=1)
    way_out = f"did you mean {json.dumps(nearest[0])}?" if nearest else f"use one of: {', '.join(flag.keys)}"
    return f"has no key {json.dumps(unknown)}", way_out


def _text_or_object(value: str, flag: Flag) -> _Broken:
    return _json(value, flag) if re.fullmatch(r"\s*{.*}\s*", value, re.DOTALL) else None


def _unknown_kind(_value: str, flag: Flag) -> _Broken:
    return f"its values are read by vLLM's own {flag.kind}, which spec/flags.py does not know", "remove the flag"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


def _object_of_unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


_SIZE = r"\d+|\d+(\.\d+)?[kmgt]|\d+[KMGT]"
_SIZE_FORM = "digits, then k, m, g or t for powers of 1000, or K, M, G or T for powers of 1024, or nothing"
_KINDS: Mapping[str, _Check] = MappingProxyType(
    {
        "text": _text,
        "name": _text,
        "list": _text,
        "integer": _pattern(r"-?\d+", "not a whole number", "write digits"),
        "number": _pattern(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", "not a number", "write a number, as 0.65"),
        "size": _pattern(_SIZE, "not a size", f"write {_SIZE_FORM}"),
        "size or auto": _pattern(f"auto|-1|{_SIZE}", "neither `auto` nor a size", f"write `auto`, or {_SIZE_FORM}"),
        "json": _json,
        "object": _object,
        "text or object": _text_or_object,
        "LoRAParserAction": _pattern(r"[^=,{]+=[^,]+", "not NAME=PATH", "write NAME=PATH"),
    }
)
"""What a value of each kind may be."""
