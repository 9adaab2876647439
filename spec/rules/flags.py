"""Rules about the engine's flags."""

from collections.abc import Iterator

from spec.architecture import Dflash2, Gemma4, Qwen3
from spec.engine import Engine
from spec.errors import Problem
from spec.executors import SGLANG_SYSTEM_FLAGS
from spec.flags import SYSTEM_FLAGS, FlagProblem, check_without_table
from spec.rules.rule import Estimates, refuse, warn
from spec.rules.words import listed
from spec.situation import Situation

_DRAFTING = (
    *("speculative_config", "speculative_algorithm", "speculative_num_steps"),
    *("speculative_eagle_topk", "speculative_num_draft_tokens"),
)
_NOT_HEADLESS = ("api_server_count", "grpc", "data_parallel_hybrid_lb")
_SGLANG_NAMES = {
    "max_num_seqs": "max_running_requests",
    "max_num_batched_tokens": "chunked_prefill_size",
    "kv_cache_memory_bytes": "max_total_tokens",
    "gpu_memory_utilization": "mem_fraction_static",
    "block_size": "page_size",
    "enforce_eager": "disable_cuda_graph",
    "enable_expert_parallel": "ep_size",
    "enable_prefix_caching": "disable_radix_cache",
    "moe_backend": "moe_runner_backend",
}
"""Keys of the engine that SGLang has no flag for, with the flag that it has instead."""


@refuse
def engine_flags_are_known(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """Every flag is one of the image's engine, in full, once, with a value that it takes, and not the system's.

    Source: facts/vllm-patches.md section 4 (abbreviations and duplicates pass in silence); issue 4.
    """
    arguments = situation.config.engine.arguments()
    if situation.image.engine == "sglang":
        found = check_without_table(arguments, SGLANG_SYSTEM_FLAGS)
    elif situation.flags:
        found = situation.flags.check(arguments)
    else:
        found = check_without_table(arguments, SYSTEM_FLAGS)
    for problem in found:
        yield problem.problem(situation.file, situation.problem(_key_of(problem), None, "", "").key)


@refuse
def choices_stand_at_their_own_key(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """What has a key of its own in the stack file is not chosen by another name under `other`.

    Source: the plan reads the key, and would describe another engine than the one that runs; issue 4 (one precedence).
    """
    names = _other_names_of_keys(situation)
    for name, value in situation.config.engine.other.items():
        key = names.get(name.replace("-", "_"))
        if key:
            yield situation.problem(f"engine/other/{name}", value, f"it sets what `{key}` sets", f"use the key `{key}`")


@refuse
def sglang_has_these_flags(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """The engine's keys are ones that SGLang has a flag for.

    Source: SGLang's server arguments (facts/seed-repos.md 1.5, the SGLang lane's MEM_FRACTION_STATIC).
    """
    if situation.image.engine != "sglang":
        return
    for name, its_name in _SGLANG_NAMES.items():
        value = getattr(situation.config.engine, name)
        if value is not None and value is not False:
            yield situation.problem(
                f"engine/{name}",
                value,
                f"SGLang has no flag --{name.replace('_', '-')}",
                f"remove the key and write `{its_name}` under `other`",
            )


@refuse
def flags_suit_headless_ranks(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """No flag of a group of several nodes is one that a headless rank refuses.

    Source: facts/vllm-patches.md section 4, `--headless`; vLLM entrypoints/cli/serve.py.
    """
    most = max(len(nodes) for nodes in situation.config.groups.values())
    if most == 1 or situation.config.executor != "mp":
        return
    for name, value in situation.config.engine.other.items():
        if name.replace("-", "_") in _NOT_HEADLESS:
            yield situation.problem(
                f"engine/other/{name}",
                value,
                f"all ranks get the same flags, and {most - 1} of {most} are headless: they end with this one",
                "remove the flag",
            )


@refuse
def automatic_tools_have_a_parser(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """Automatic tool choice has a parser.

    Source: vLLM `validate_parsed_serve_args`, beside the parser of facts/vllm-patches.md section 4.
    """
    other = situation.config.engine.other
    if other.get("enable_auto_tool_choice") and not other.get("tool_call_parser"):
        yield situation.problem(
            "engine/other/enable_auto_tool_choice",
            True,
            "vLLM refuses to start without a tool_call_parser beside it",
            "add `tool_call_parser`: glm47 for GLM-5.3-Flash, qwen3_coder for Qwen3.8-Flash-Next",
        )


@warn
def tool_parser_is_in_use(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """A tool parser is switched on.

    Source: facts/seed-repos.md section 6, 70 (`tool_choice: auto` answers 400).
    """
    other = situation.config.engine.other
    if situation.image.engine != "vllm":
        return
    if other.get("tool_call_parser") and not other.get("enable_auto_tool_choice"):
        yield situation.problem(
            "engine/other/tool_call_parser",
            other["tool_call_parser"],
            "without enable_auto_tool_choice a request with `tool_choice: auto` answers 400",
            "add `enable_auto_tool_choice: true`, or remove the parser",
        )


@warn
def overrides_reach_the_text_model(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """Overrides of a model that also sees are nested under `text_config`.

    Source: facts/seed-repos.md section 6, 74 (at the top level they are ignored in silence: YaRN did nothing).
    """
    overrides = situation.config.engine.other.get("hf_overrides")
    if not isinstance(overrides, dict) or isinstance(situation.model.architecture, Gemma4 | Qwen3 | Dflash2):
        return
    outside = [name for name in overrides if name not in ("text_config", "vision_config", "architectures")]
    if outside:
        yield situation.problem(
            "engine/other/hf_overrides",
            overrides,
            f"{listed(outside)} at the top level is not read by the text model, whose numbers stand under text_config",
            "nest it: hf_overrides: {text_config: {...}}",
        )


@warn
def flags_are_of_the_images_version(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """The flags were checked against the table of the image's own version.

    Source: facts/vllm-patches.md section 0, 7 and section 4 (flags and negations differ between versions).
    """
    image = situation.image
    if image.flags_are_of_another_version and situation.flags:
        yield Problem(
            situation.image_file,
            "flags_are_of_another_version",
            True,
            f"flags were checked against the table of vLLM {image.flag_table}, and the image has {image.version}",
            "run tools/dump_flags.py in the image and keep its table; or acknowledge it once the image has started",
        )


@warn
def flags_can_be_checked(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """There is a table to check the flags against.

    Source: issue 4, every flag is checked against the real flag table of the image's version.
    """
    if situation.flags is None:
        engine = situation.image.engine
        flags = sum(word.startswith("--") for word in situation.config.engine.arguments())
        yield Problem(
            situation.image_file,
            "flag_table",
            None,
            f"{flags} flag(s) were checked in form only: there is no table of this {engine}",
            "run tools/dump_flags.py in the image and keep its table"
            if engine == "vllm"
            else "acknowledge it once the image has started with these flags",
        )


def _key_of(problem: FlagProblem) -> str:
    name = problem.flag.lstrip("-").replace("-", "_")
    return f"engine/{name}" if name in Engine.model_fields else f"engine/other/{name}"


def _other_names_of_keys(situation: Situation) -> dict[str, str]:
    """Returns the further names of flags that have a key in the stack file, with that key."""
    names = dict.fromkeys(_DRAFTING, "speculative")
    if situation.image.engine == "sglang":
        return names | {"context_length": "engine/max_model_len"}
    for field in Engine.model_fields:
        flag = situation.flags.flags.get(f"--{field.replace('_', '-')}") if situation.flags else None
        if flag:
            further = (*flag.aliases, *flag.short, *flag.negations, *flag.hidden)
            names |= {name.lstrip("-").replace("-", "_"): f"engine/{field}" for name in further}
    return names
