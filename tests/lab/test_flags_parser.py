"""The flag table against the parser it was taken from: vLLM's own, in the tree that the lab's ranks run.

One process of vLLM's Python reads all argument lists, since it takes seconds to import.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from spec.executors import Executor, start
from spec.flags import SYSTEM_FLAGS, Flag, FlagTable, flag_tables
from spec.speculative import DFlash, Mtp, speculative_arguments
from tests.conftest import VllmTree
from tests.unit.test_executors import GLM_002_ARGUMENTS, GLM_003_ARGUMENTS, QWEN_TP4_ARGUMENTS, launch

PROJECT = Path(__file__).parents[2]
VERSION = "0.32.0"
FILE = PROJECT / "catalog" / "flags" / f"vllm-{VERSION}.json"
TABLE = flag_tables({FILE.name: json.loads(FILE.read_text())})[VERSION]
CHOSEN_BY_PEOPLE = {name: flag for name, flag in TABLE.flags.items() if name not in SYSTEM_FLAGS}

# Builds the parser as `vllm` does for `vllm serve` and, for offline jobs, as vLLM's engine arguments do.
PARSE = """
import contextlib, io, json, sys
out, sys.stdout = sys.stdout, sys.stderr
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.cli.serve import cmd_init
from vllm.utils.argparse_utils import FlexibleArgumentParser

command_line = FlexibleArgumentParser()
command_line.add_argument("-v", "--version", action="version", version="0")
subparsers = command_line.add_subparsers(dest="subparser")
for command in cmd_init():
    command.subparser_init(subparsers)
offline = FlexibleArgumentParser()
offline.add_argument("model_folder")
EngineArgs.add_cli_args(offline)

def refusal(words):
    said = io.StringIO()
    parser = command_line if words[0] == "serve" else offline
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(words)
    except BaseException as error:
        return f"{error!r} {said.getvalue()[-300:]}"

json.dump([refusal(words) for words in json.load(open('/input/lists.json'))], out)
"""
SPECULATIVE_KEYS = """
import json, sys
out, sys.stdout = sys.stdout, sys.stderr
from vllm.config import SpeculativeConfig
json.dump(sorted(SpeculativeConfig.__dataclass_fields__), out)
"""


def run_vllm_python(arguments: list[str], vllm: VllmTree, folder: Path) -> str:
    """Runs the image's own Python with the tree and with `folder` as /input."""
    return vllm.python.run(
        arguments,
        what="ask vLLM's parser",
        readable={"/opt/vllm": vllm.folder, "/input": folder},
        environment={"PYTHONPATH": "/opt/vllm", "VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1"},
    )


def refused_by_vllm(lists: Iterable[Iterable[str]], vllm: VllmTree, folder: Path) -> list[tuple[list[str], str]]:
    """Returns the argument lists that vLLM's parser refuses, with what it says."""
    words = [list(found) for found in lists]
    (folder / "lists.json").write_text(json.dumps(words))
    answers = json.loads(run_vllm_python(["-c", PARSE], vllm, folder))
    return [(found, answer) for found, answer in zip(words, answers, strict=True) if answer]


TEXTS = st.from_regex(r"[A-Za-z0-9/_][A-Za-z0-9/_.:=+-]{0,12}", fullmatch=True)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
SIZES = st.integers(0, 10**12).map(str) | st.from_regex(
    r"[0-9]{1,4}(\.[0-9]{1,2})?[kmgt]|[0-9]{1,4}[KMGT]", fullmatch=True
)
VALUES_OF_KIND = {
    "text": TEXTS,
    "name": TEXTS,
    "list": TEXTS,
    "integer": st.integers(-(10**9), 10**9).map(str),
    "number": st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3})?(e-[0-9])?", fullmatch=True),
    "size": SIZES,
    "size or auto": SIZES | st.sampled_from(["auto", "-1"]),
    "json": JSON_VALUES.map(json.dumps),
    # What stands inside an object of a configuration class is typed by vLLM and by no table.
    "object": st.just("{}"),
    "text or object": TEXTS | st.dictionaries(TEXTS, JSON_VALUES, max_size=2).map(json.dumps),
    "LoRAParserAction": st.from_regex(r"[a-z]{1,5}=/[a-z]{1,5}", fullmatch=True),
    "DeprecatedLogConfigFileAction": st.nothing(),
}
NUMBER_OF_VALUES = {"none": (0, 0), "one": (1, 1), "optional": (0, 1), "several": (1, 3), "any": (0, 3)}


def uses_of(name: str, flag: Flag) -> st.SearchStrategy[list[str]]:
    """Right uses of a flag: by each of its names, with values of its kind."""
    value = st.sampled_from(list(map(str, flag.choices))) if flag.choices else VALUES_OF_KIND[flag.kind]
    least, most = NUMBER_OF_VALUES[str(flag.takes_value)]
    separate = st.tuples(
        st.sampled_from([name, *flag.aliases]).map(lambda one: [one]), st.lists(value, min_size=least, max_size=most)
    )
    right = separate.map(lambda found: found[0] + found[1])
    if (least, most) == (1, 1):
        right |= st.builds(lambda found: [f"{name}={found}"], value)
    return right | st.sampled_from([[negation] for negation in flag.negations]) if flag.negations else right


RIGHT_LISTS = st.lists(st.sampled_from(sorted(CHOSEN_BY_PEOPLE)), unique=True, max_size=12).flatmap(
    lambda names: st.tuples(*(uses_of(name, CHOSEN_BY_PEOPLE[name]) for name in names))
).map(lambda uses: [word for use in uses for word in use])  # fmt: skip
ALL_NAMES = [
    one
    for name, flag in TABLE.flags.items()
    for one in (name, *flag.aliases, *flag.short, *flag.negations, *flag.hidden)
]
ODD_VALUES = st.sampled_from(
    ["", "-", "--", "-1", "-0.5", "1.5", ".5", "1e3", "26Gi", "1k", "1.5K", "auto", "None", "nan", "{}", "[]", "{x}",
     "a=b", "a b", "-x", "x,y=z", "true", "1_000", "+5", "\u0663", "--model", "serve", "@x", "="]
)  # fmt: skip
VALUED = [name for name, flag in CHOSEN_BY_PEOPLE.items() if flag.takes_value != "none" and not flag.choices]
# A name that takes values with an odd one; and any name, or the beginning of one, with any number of them.
ODD_VALUE_USES = st.builds(lambda name, value: [name, value], st.sampled_from(VALUED), ODD_VALUES)
ODD_NAMES = st.sampled_from(ALL_NAMES) | st.sampled_from(ALL_NAMES).map(lambda name: name[:9])
ODD_USES = st.builds(
    lambda name, inline, values: [f"{name}={inline}" if inline is not None else name, *values],
    ODD_NAMES,
    st.none() | ODD_VALUES,
    st.lists(ODD_VALUES, max_size=2),
)
ODD_LISTS = st.lists(ODD_VALUE_USES | ODD_USES, min_size=1, max_size=2).map(
    lambda uses: [word for use in uses for word in use]
)


def drawn(lists: st.SearchStrategy[list[str]], examples: int) -> list[list[str]]:
    """Returns the same argument lists every time."""
    found: list[list[str]] = []

    @settings(max_examples=examples, derandomize=True, database=None, deadline=None)
    @given(lists)
    def collect(words: list[str]) -> None:
        found.append(words)

    collect()
    return found


def test_the_table_is_what_the_tool_prints(vllm_tree: VllmTree) -> None:
    assert run_vllm_python(["/input/dump_flags.py"], vllm_tree, PROJECT / "tools") == FILE.read_text()


def test_what_the_table_accepts_vllm_accepts(vllm_tree: VllmTree, tmp_path: Path) -> None:
    right = drawn(RIGHT_LISTS, 600)
    assert [(words, list(map(str, found))) for words in right if (found := TABLE.check(words))] == []
    odd = [words for words in drawn(ODD_LISTS, 4000) if TABLE.check(words) == []]
    assert len(odd) > 200
    lists = [["serve", "/model", *words] for words in (*right, *odd)]
    assert refused_by_vllm(lists, vllm_tree, tmp_path) == []


def test_what_the_executors_render_vllm_accepts(vllm_tree: VllmTree, tmp_path: Path) -> None:
    chosen = (
        QWEN_TP4_ARGUMENTS,
        GLM_002_ARGUMENTS,
        GLM_003_ARGUMENTS,
        speculative_arguments(Mtp(method="mtp", draft_tokens=4)),
        speculative_arguments(
            DFlash(method="dflash", draft_tokens=7, drafter="/drafter", attention_backend="FLASH_ATTN")
        ),
    )
    executors: tuple[Executor, ...] = ("mp", "ray")
    serving = [
        start(executor, launch(rank=rank, engine_arguments=arguments)).argv[1:]
        for executor in executors
        for rank in range(2 if executor == "mp" else 1)
        for arguments in chosen
    ]
    job = start("external_launcher", launch(program=("python3", "/job.py"), engine_arguments=GLM_003_ARGUMENTS)).argv[
        2:
    ]
    assert [found for words in serving if (found := checked_as_rendered(TABLE, words[2:]))] == []
    assert refused_by_vllm([*serving, job], vllm_tree, tmp_path) == []


def checked_as_rendered(table: FlagTable, words: tuple[str, ...]) -> list[str]:
    return list(map(str, table.check(words, rendered=True)))


def test_the_speculative_keys_are_vllms(vllm_tree: VllmTree, tmp_path: Path) -> None:
    keys = set(json.loads(run_vllm_python(["-c", SPECULATIVE_KEYS], vllm_tree, tmp_path)))
    drafting = DFlash(method="dflash", draft_tokens=7, drafter="/drafter", attention_backend="FLASH_ATTN")
    assert {*drafting.config(), *Mtp(method="mtp", draft_tokens=4).config()} <= keys
