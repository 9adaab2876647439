"""Rules about the variables that a person may set."""

import re
from collections.abc import Iterator

from spec.catalog import STACK_KEY
from spec.errors import Problem
from spec.executors import Launch, start
from spec.nccl import environment_problems
from spec.rules.rule import Estimates, refuse
from spec.situation import Situation

_SECRET = re.compile(r"(^|_)(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS)$", re.IGNORECASE)


@refuse
def environment_leaves_the_fabric_alone(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """No variable of the fabric is set by hand, the GID index least of all, and none is empty.

    Source: seed 002, "The RoCE GID index is per node and per boot"; facts/peers.md 2, 4, 5, 9, 10; design.md
    guarantee 6.
    """
    yield from environment_problems(situation.image.environment, situation.image_file, "environment")
    yield from environment_problems(situation.config.environment, situation.file, f"config/{STACK_KEY}/environment")


@refuse
def no_secret_is_in_the_open(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """No variable and no flag holds a secret, which `docker inspect` and `ps` would show.

    Source: design.md guarantee 11; facts/seed-repos.md section 6, 77.
    """
    shown = "(not shown)"
    for name in situation.config.engine.other:
        if _SECRET.search(name) and not name.endswith("api_key"):
            yield situation.problem(
                f"engine/other/{name}",
                shown,
                "a secret in argv is seen by everyone who may run `ps`",
                "remove it: a rank finds the weights on its node and needs no token",
            )
    for file, key, variables in (
        (situation.image_file, "environment", situation.image.environment),
        (situation.file, f"config/{STACK_KEY}/environment", situation.config.environment),
    ):
        for name in variables:
            if _SECRET.search(name):
                yield Problem(
                    file,
                    f"{key}/{name}",
                    shown,
                    "a secret in a variable is seen by everyone who may run `docker inspect`",
                    "remove it: a rank finds the weights on its node, and an API key is a secret of the stack",
                )


@refuse
def environment_is_not_overruled(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """No variable is set that the executor sets as well and would win.

    Source: facts/peers.md 4 (the launcher's later value wins in silence).
    """
    for name in _executor_variables(situation):
        for file, key, variables in (
            (situation.image_file, "environment", situation.image.environment),
            (situation.file, f"config/{STACK_KEY}/environment", situation.config.environment),
        ):
            if name in variables:
                yield Problem(
                    file,
                    f"{key}/{name}",
                    variables[name],
                    f"the executor {situation.config.executor} sets {name} for each rank, and its value wins",
                    "remove it",
                )


@refuse
def environment_changes_something(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """A variable of the stack differs from the image's own.

    Source: issue 4, an override that no longer overrides anything is an error.
    """
    for name, value in situation.config.environment.items():
        if situation.image.environment.get(name) == value:
            yield situation.problem(
                f"environment/{name}",
                value,
                f"{situation.image_file} sets it to the same value: it overrides nothing",
                "remove it",
            )


def _executor_variables(situation: Situation) -> tuple[str, ...]:
    """Returns the variables that this executor gives to any rank."""
    anyone = Launch(
        program=("engine",),
        model="/model",
        served_name="model",
        group="group",
        port=1,
        master_port=1,
        rank=0,
        addresses=("192.0.2.1",),
    )
    return tuple(start(situation.config.executor, anyone).environment)
