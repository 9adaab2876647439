"""The tasks that a stack's commands run."""

import importlib
import subprocess
import sys

from ops.places import PROJECT
from ops.tasks import TASKS


def test_every_task_is_where_the_table_says() -> None:
    for place in TASKS.values():
        module, _, function = place.partition(":")
        assert callable(getattr(importlib.import_module(module), function)), place


def test_a_task_answers_with_one_line_and_another_word_is_refused() -> None:
    done, refused = (
        subprocess.run(
            [sys.executable, "-m", "ops.tasks", verb],
            cwd=PROJECT,
            input="{}",
            capture_output=True,
            text=True,
            check=False,
        )
        for verb in ("new-key", "no-such-task")
    )
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1
    assert refused.returncode == 2
    assert "node-facts|" in refused.stderr
