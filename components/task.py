"""A command of the stack: one task of `python -m ops.tasks` on the controller, with its request on standard input."""

import json
from typing import Any

import pulumi
import pulumi_command as command

# Pulumi.yaml names .venv; the command plugin runs in the project's folder.
_PYTHON = ".venv/bin/python -m ops.tasks"


def task(
    name: str,
    verb: str,
    request: dict[str, Any],
    *,
    parent: pulumi.Resource,
    depends_on: list[pulumi.Resource] | None = None,
    delete_verb: str | None = None,
    triggers: list[Any] | None = None,
    secret_answer: bool = False,
    sees_last_answer: bool = False,
) -> command.local.Command:
    """Declares one task; another request runs it again in place, other triggers replace it.

    The request travels on standard input, so that addresses and settings stay out of argv, and a failed task is
    reported by its own words instead of by a long command line.

    Args:
        name: logical name.
        verb: the task.
        request: plain data and outputs.
        parent: the component it belongs to.
        depends_on: what must be there before.
        delete_verb: the task that undoes it when the resource goes.
        triggers: values whose change runs it anew.
        secret_answer: the answer is neither shown nor kept in the clear.
        sees_last_answer: it finds its own last answer in the environment, as PULUMI_COMMAND_STDOUT.
    """
    return command.local.Command(
        name,
        create=f"{_PYTHON} {verb}",
        delete=f"{_PYTHON} {delete_verb}" if delete_verb else None,
        stdin=pulumi.Output.json_dumps(request, sort_keys=True, separators=(",", ":")),
        triggers=triggers,
        add_previous_output_in_env=sees_last_answer,
        logging=command.local.Logging.STDERR if secret_answer else None,
        opts=pulumi.ResourceOptions(
            parent=parent,
            depends_on=depends_on,
            additional_secret_outputs=["stdout"] if secret_answer else None,
        ),
    )


def answer_of(resource: command.local.Command) -> pulumi.Output[Any]:
    """Returns what the task answered, as plain data."""
    return resource.stdout.apply(json.loads)
