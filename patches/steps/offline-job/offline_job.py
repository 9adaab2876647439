#!/usr/bin/env python3
"""Asks a model the same prompts on every rank (executor external_launcher) and prints each answer as a line of JSON.

`offline_job.py MODEL [vLLM's engine flags]`. Prompts come from the file that OFFLINE_JOB_PROMPTS names, one a line;
without it one question is asked whose answer everybody knows. All ranks ask the same: each takes part in every step.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

_QUESTION = "What is 2+2? Answer in one word:"
_MOST_TOKENS = 10


def _prompts() -> list[str]:
    file = os.environ.get("OFFLINE_JOB_PROMPTS")
    return [line for line in Path(file).read_text(encoding="utf-8").splitlines() if line] if file else [_QUESTION]


def _engine_arguments(words: list[str]) -> dict[str, Any]:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    asked, plain = (
        vars(EngineArgs.from_cli_args(parser.parse_args(["--model", *some]))) for some in (words, words[:1])
    )
    # Only what was asked: the LLM class fills in the rest by rules of its own.
    return {"model": asked["model"]} | {name: value for name, value in asked.items() if value != plain[name]}


def main() -> None:
    """Asks every prompt once, greedily."""
    from vllm import LLM, SamplingParams

    prompts = _prompts()
    model = LLM(**_engine_arguments(sys.argv[1:]))
    answers = model.generate(prompts, SamplingParams(temperature=0, max_tokens=_MOST_TOKENS))
    for prompt, answer in zip(prompts, answers, strict=True):
        line = {"rank": int(os.environ.get("RANK", "0")), "prompt": prompt, "answer": answer.outputs[0].text}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
