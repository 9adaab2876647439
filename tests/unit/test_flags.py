"""The flag tables: what they accept, and exactly what is said of what they refuse."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec.errors import Problem, SpecificationError
from spec.executors import SGLANG_SYSTEM_FLAGS, start
from spec.flags import SYSTEM_FLAGS, FlagTable, check_without_table, flag_tables, table_of
from tests.unit.test_executors import GLM_002_ARGUMENTS, GLM_003_ARGUMENTS, QWEN_TP4_ARGUMENTS, launch

FOLDER = Path(__file__).parents[2] / "catalog" / "flags"
TABLES = flag_tables({file.name: json.loads(file.read_text()) for file in FOLDER.glob("*.json")})
OLDER = TABLES["0.32.0"]
NEWER = TABLES["0.33.0"]
MOE_BACKENDS = ", ".join(map(str, OLDER.flags["--moe-backend"].choices))

# Seed 000: GLM at TP4 with 16 GiB of KV a rank, and at TP2 with the 4.14 GiB that vLLM suggested.
GLM_TP4 = (
    "--enforce-eager --moe-backend marlin --kv-cache-dtype fp8_e4m3 --block-size 2304 --max-model-len 262144 "
    "--kv-cache-memory-bytes 17179869184"
)
GLM_TP2 = GLM_TP4.replace("17179869184", "4445787956")


def said(table: FlagTable, words: str | list[str]) -> list[str]:
    return [str(problem) for problem in table.check(words.split() if isinstance(words, str) else words)]


@pytest.mark.parametrize("table", [OLDER, NEWER], ids=["0.32.0", "0.33.0"])
@pytest.mark.parametrize(
    "arguments",
    [QWEN_TP4_ARGUMENTS, GLM_002_ARGUMENTS, GLM_003_ARGUMENTS, tuple(GLM_TP4.split()), tuple(GLM_TP2.split())],
    ids=["qwen-tp4", "glm53", "glm53-ethernet", "glm53-tp4", "glm53-tp2"],
)
def test_the_sources_arguments_are_accepted(table: FlagTable, arguments: tuple[str, ...]) -> None:
    assert table.check(arguments) == []


@pytest.mark.parametrize("rank", range(2))
def test_a_whole_rendered_command_line_is_accepted_as_rendered_only(rank: int) -> None:
    words = start("mp", launch(rank=rank, engine_arguments=QWEN_TP4_ARGUMENTS)).argv[3:]
    assert OLDER.check(words, rendered=True) == []
    refused = {problem.flag for problem in OLDER.check(words)}
    assert refused == set(SYSTEM_FLAGS) & set(words)
    assert len(refused) == (11 if rank else 10)


@pytest.mark.parametrize(
    ("table", "words", "expected"),
    [
        # The abbreviation that all launchers of the first source use.
        (
            OLDER,
            "--kv-cache-memory 4445787956",
            "--kv-cache-memory 4445787956: an abbreviation: vLLM's parser would complete it to "
            "--kv-cache-memory-bytes, until another flag begins alike. Way out: write --kv-cache-memory-bytes",
        ),
        (
            OLDER,
            "--max-num-b 4",
            "--max-num-b 4: an abbreviation: vLLM's parser would complete it to --max-num-batched-tokens, "
            "until another flag begins alike. Way out: write --max-num-batched-tokens",
        ),
        (
            OLDER,
            "--max-lora 4",
            "--max-lora 4: an abbreviation: vLLM 0.32.0 has 3 flags that begin so. "
            "Way out: write --max-lora-cls-labels, --max-lora-rank or --max-loras",
        ),
        (
            OLDER,
            "--max-model-length 4096",
            "--max-model-length 4096: vLLM 0.32.0 has no such flag. Way out: did you mean --max-model-len?",
        ),
        (
            OLDER,
            "--qqqq",
            "--qqqq: vLLM 0.32.0 has no such flag. Way out: look it up in catalog/flags/vllm-0.32.0.json",
        ),
        (
            OLDER,
            "--max_model_len 4096",
            "--max_model_len 4096: a flag is written with dashes. Way out: write --max-model-len",
        ),
        (
            OLDER,
            "-ep",
            "-ep: a one-dash form: only full names are written here. Way out: write --enable-expert-parallel",
        ),
        (
            OLDER,
            "-O3",
            "-O3: a one-dash form: only full names are written here. Way out: write a full name, with two dashes",
        ),
        (
            OLDER,
            "--compilation-config.cudagraph_mode NONE",
            "--compilation-config.cudagraph_mode NONE: a dotted form, which vLLM's parser puts together to one JSON "
            'object. Way out: write --compilation-config with the whole object, {"cudagraph_mode": ...}',
        ),
        # Negations: 0.33.0 has renamed them and hides the old ones (facts/vllm-patches.md 0.7).
        (
            OLDER,
            "--disable-prefix-caching",
            "--disable-prefix-caching: vLLM 0.32.0 has no such flag; it is one of 0.33.0. "
            "Way out: write --no-enable-prefix-caching",
        ),
        (
            NEWER,
            "--no-enable-prefix-caching",
            "--no-enable-prefix-caching: vLLM 0.33.0 has renamed this negation; it still takes the old name but hides "
            "it. Way out: write --disable-prefix-caching",
        ),
        (
            OLDER,
            "--watchdog-config {}",
            "--watchdog-config {}: vLLM 0.32.0 has no such flag; it is one of 0.33.0. "
            "Way out: remove it, or use an image with vLLM 0.33.0",
        ),
        # How often.
        (
            OLDER,
            "--block-size 2304 --block-size 2560",
            "--block-size 2560: stands twice; vLLM silently takes the last one. Way out: keep one of them",
        ),
        (
            OLDER,
            "--enforce-eager --no-enforce-eager",
            "--no-enforce-eager: stands beside --enforce-eager, which sets the same; vLLM silently takes the last one. "
            "Way out: keep one of them",
        ),
        (
            OLDER,
            "--gpu-memory-utilization 0.65 --device-memory-utilization 0.7",
            "--device-memory-utilization 0.7: stands beside --gpu-memory-utilization, which sets the same; "
            "vLLM silently takes the last one. Way out: keep one of them",
        ),
        # Values.
        (
            OLDER,
            "--kv-cache-dtype fp8-e4m3",
            f"--kv-cache-dtype fp8-e4m3: not one of: {', '.join(map(str, OLDER.flags['--kv-cache-dtype'].choices))}. "
            "Way out: write fp8_e4m3",
        ),
        (
            OLDER,
            "--moe-backend CUTLASS",
            f"--moe-backend CUTLASS: not one of: {MOE_BACKENDS}. Way out: write cutlass",
        ),
        (
            OLDER,
            "--max-lora-rank 3",
            "--max-lora-rank 3: not one of: 1, 8, 16, 32, 64, 128, 256, 320, 512. Way out: write 32",
        ),
        (
            OLDER,
            "--max-model-len",
            "--max-model-len: needs a value. Way out: write --max-model-len and a value; "
            "one that begins with a dash is written --max-model-len=VALUE",
        ),
        (
            OLDER,
            "--enforce-eager true",
            "--enforce-eager true: takes no value. Way out: write --enforce-eager alone, or leave it out",
        ),
        (
            OLDER,
            "--no-enforce-eager=true",
            "--no-enforce-eager true: takes no value. Way out: write --no-enforce-eager alone, or leave it out",
        ),
        (
            OLDER,
            "--block-size 2304 256",
            "--block-size 2304 256: takes 1 value(s), not 2. Way out: remove what does not belong",
        ),
        (OLDER, "--block-size 2k", "--block-size 2k: not a whole number. Way out: write digits"),
        (OLDER, "--block-size \u0663", "--block-size \u0663: not a whole number. Way out: write digits"),
        (
            OLDER,
            "--gpu-memory-utilization nan",
            "--gpu-memory-utilization nan: not a number. Way out: write a number, as 0.65",
        ),
        (
            OLDER,
            "--kv-cache-memory-bytes 26Gi",
            "--kv-cache-memory-bytes 26Gi: not a size. Way out: write digits, then k, m, g or t for powers of 1000, "
            "or K, M, G or T for powers of 1024, or nothing",
        ),
        (
            OLDER,
            "--max-model-len 1.5K",
            "--max-model-len 1.5K: neither `auto` nor a size. Way out: write `auto`, or digits, then k, m, g or t for "
            "powers of 1000, or K, M, G or T for powers of 1024, or nothing",
        ),
        (
            OLDER,
            "--limit-mm-per-prompt {'image':4}",
            "--limit-mm-per-prompt {'image':4}: not JSON: Expecting property name enclosed in double quotes: "
            "line 1 column 2 (char 1). Way out: write JSON, its keys and texts in double quotes",
        ),
        (
            OLDER,
            '--limit-mm-per-prompt {"image":4,"image":5}',
            '--limit-mm-per-prompt {"image":4,"image":5}: not JSON: a key stands twice. Way out: write JSON, '
            "its keys and texts in double quotes",
        ),
        (
            OLDER,
            '--compilation-config {"cudagraph_mod":"NONE"}',
            '--compilation-config {"cudagraph_mod":"NONE"}: has no key "cudagraph_mod". '
            'Way out: did you mean "cudagraph_mode"?',
        ),
        (
            OLDER,
            "--compilation-config 3",
            "--compilation-config 3: not a JSON object. Way out: write an object, in braces",
        ),
        (
            OLDER,
            "--hf-overrides {x}",
            "--hf-overrides {x}: not JSON: Expecting property name enclosed in double quotes: line 1 column 2 "
            "(char 1). Way out: write JSON, its keys and texts in double quotes",
        ),
        (OLDER, "--lora-modules x", "--lora-modules x: not NAME=PATH. Way out: write NAME=PATH"),
        (
            OLDER,
            "--log-config-file x",
            "--log-config-file x: its values are read by vLLM's own DeprecatedLogConfigFileAction, which spec/flags.py "
            "does not know. Way out: remove the flag",
        ),
        (
            OLDER,
            "--reasoning-parser=",
            "--reasoning-parser: its value is empty. Way out: write a value, or leave --reasoning-parser out",
        ),
        (OLDER, "true", "true: belongs to no flag. Way out: remove it, or write its flag before it"),
    ],
)
def test_what_is_said_of_a_wrong_argument(table: FlagTable, words: str, expected: str) -> None:
    assert said(table, words) == [expected]


@pytest.mark.parametrize("flag", sorted(SYSTEM_FLAGS))
def test_a_flag_of_the_system_is_refused_with_the_way_to_change_it(flag: str) -> None:
    reason, way_out = SYSTEM_FLAGS[flag]
    (problem,) = OLDER.check([flag] if OLDER.flags[flag].takes_value == "none" else [flag, "1"])
    assert (problem.id, problem.rule, problem.way_out) == (
        "flag-system",
        f"belongs to the system: it {reason}",
        way_out,
    )


def test_a_negative_decimal_needs_an_equals_sign() -> None:
    """vLLM's own pass before argparse takes -0.5 for a dotted flag and dies on what follows."""
    assert [problem.id for problem in OLDER.check(["--gpu-memory-utilization", "-0.5"])] == [
        "flag-without-value",
        "flag-short",
    ]
    assert OLDER.check(["--gpu-memory-utilization=-0.5"]) == []


@pytest.mark.parametrize(
    "words",
    [
        ["--max-model-len", "-1"],
        ["--max-model-len=auto"],
        ["--kv-cache-memory-bytes", "26G"],
        ["--kv-cache-memory-bytes", "4.14g"],
        ["--cudagraph-capture-sizes", "8", "16", "32"],
        ["--hf-token"],
        ["--hf-token", "x"],
        ["--middleware", "a.b", "--middleware", "c.d"],
        ["--no-enforce-eager"],
        ["--compilation-config", '{"cudagraph_mode": "FULL_AND_PIECEWISE"}'],
        ["--hf-overrides", "anything"],
        ["--additional-config", '{"a": {"b": 1}}'],
        ["--lora-modules", "a=/a", "b=/b"],
    ],
)
def test_values_of_every_kind(words: list[str]) -> None:
    assert said(OLDER, words) == []


def test_nothing_follows_an_inline_value() -> None:
    """argparse hands a second word to the model's positional argument, which is taken."""
    assert [str(problem) for problem in OLDER.check(["--cudagraph-capture-sizes=8", "16"])] == [
        "16: belongs to no flag. Way out: remove it, or write its flag before it"
    ]


def test_several_problems_keep_their_order() -> None:
    found = OLDER.check(["x", "--port", "1", "--zz", "--enforce-eager", "1", "--enforce-eager"])
    assert [problem.id for problem in found] == [
        "flag-stray",
        "flag-system",
        "flag-unknown",
        "flag-takes-no-value",
        "flag-twice",
    ]


def test_a_problem_of_a_file_says_where() -> None:
    (problem,) = OLDER.check(["--kv-cache-memory", "1"])
    assert str(problem.problem("Pulumi.glm53-tp2.yaml", "config/engine/other/kv_cache_memory")) == (
        "Pulumi.glm53-tp2.yaml: config/engine/other/kv_cache_memory: '--kv-cache-memory 1'\n"
        "    an abbreviation: vLLM's parser would complete it to --kv-cache-memory-bytes, "
        "until another flag begins alike\n"
        "    Way out: write --kv-cache-memory-bytes"
    )


def test_the_tables_hold_what_the_facts_say_of_them() -> None:
    """facts/cli-0.32.0.json and cli-0.33.0.json: 430 and 435 names; facts/vllm-patches.md section 4."""
    for table, names, negation in ((OLDER, 430, "--no-enable-"), (NEWER, 435, "--disable-")):
        shown = [
            name for first, flag in table.flags.items() for name in (first, *flag.aliases, *flag.short, *flag.negations)
        ]
        assert len(shown) == len(set(shown)) == names
        assert table.flags["--enable-prefix-caching"].negations == (f"{negation}prefix-caching",)
        assert table.flags["--gpu-memory-utilization"].aliases == ("--device-memory-utilization",)
        assert table.flags["--master-port"].default == 29501
        assert table.flags["--headless"].negations == ()


def test_a_version_without_a_table_is_refused() -> None:
    assert table_of(TABLES, "0.32.0", "catalog/images/lab.yaml", "vllm_version") is OLDER
    with pytest.raises(SpecificationError) as refused:
        table_of(TABLES, "0.30.0", "catalog/images/glm.yaml", "vllm_version")
    assert refused.value.problems == (
        Problem(
            "catalog/images/glm.yaml",
            "vllm_version",
            "0.30.0",
            "no table of this vLLM's flags is there to check arguments by; there is 0.32.0, 0.33.0",
            "run tools/dump_flags.py in the image and keep its output as catalog/flags/vllm-0.30.0.json",
        ),
    )


@pytest.mark.parametrize(
    ("files", "rule"),
    [
        ({"a.json": []}, "not a flag table of format 1"),
        ({"a.json": {"format": 2, "vllm_version": "1", "flags": {}}}, "not a flag table of format 1"),
        (
            {name: {"format": 1, "vllm_version": "1", "flags": {}} for name in ("a.json", "b.json")},
            "two tables are of one vLLM version",
        ),
        (
            {"a.json": {"format": 1, "vllm_version": "1", "flags": {"--x": {"takes_value": "none", "colour": 1}}}},
            "this key is not known here",
        ),
    ],
)
def test_a_file_that_is_no_table(files: dict[str, Any], rule: str) -> None:
    with pytest.raises(SpecificationError) as refused:
        flag_tables(files)
    assert refused.value.problems[0].rule == rule


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--trust-remote-code --cuda-graph-bs-decode 1 2 3 --cuda-graph-backend-decode=disabled", []),
        ("-x 1", ["-x 1: a one-dash form. Way out: write a full name, with two dashes"]),
        (
            "--tp 4",
            ["--tp 4: belongs to the system: it follows from the plan of the group. Way out: remove the flag"],
        ),
        (
            "--page-size 64 --page-size 32",
            ["--page-size 32: stands twice; vLLM silently takes the last one. Way out: keep one of them"],
        ),
        (
            "--reasoning-parser=",
            ["--reasoning-parser: its value is empty. Way out: write a value, or leave --reasoning-parser out"],
        ),
        ("x", ["x: belongs to no flag. Way out: remove it, or write its flag before it"]),
    ],
)
def test_without_a_table_the_form_alone_is_judged(words: str, expected: list[str]) -> None:
    assert list(map(str, check_without_table(words.split(), SGLANG_SYSTEM_FLAGS))) == expected


@given(st.lists(st.text(max_size=8) | st.sampled_from(sorted(OLDER.flags)), max_size=8), st.booleans())
def test_any_words_are_judged_the_same_every_time(words: list[str], rendered: bool) -> None:
    first = OLDER.check(words, rendered=rendered)
    assert first == OLDER.check(list(words), rendered=rendered)
    assert {problem.flag for problem in first} <= {word.partition("=")[0] for word in words} | set(words)
    assert all(problem.rule and problem.way_out for problem in first)


@given(st.sampled_from([name for name in OLDER.flags if name not in SYSTEM_FLAGS]), st.integers(3, 40))
def test_no_shortened_name_is_accepted(name: str, length: int) -> None:
    shortened = name[:length]
    known = {one for first, flag in OLDER.flags.items() for one in (first, *flag.aliases, *flag.negations)}
    if shortened not in known:
        assert [problem.id for problem in OLDER.check([shortened])] == ["flag-abbreviated"]
