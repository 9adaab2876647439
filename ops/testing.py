"""`fleet test`: lint, types and the levels of tests, in the order in which they are cheapest to fail."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from ops.environment import environment_of
from ops.errors import OperationError
from ops.places import PROJECT
from ops.progress import CONSOLE, progress
from ops.toolchain import ensure_toolchain

LEVELS = ("lint", "types", "unit", "graph", "engine", "lab")
_NEED_ENGINE = {"engine", "lab"}
_SOURCES = ("__main__.py", "spec", "components", "runtime", "ops", "lab", "tests", "tools")


def run_tests(levels: Sequence[str]) -> int:
    """Runs the levels; all of pytest's in one run. Returns 0, or the code of the first that failed.

    Raises:
        OperationError: a level is not known.
    """
    unknown = [level for level in levels if level not in LEVELS]
    if unknown:
        raise OperationError(f"no test level {', '.join(unknown)}; there are: {', '.join(LEVELS)}")
    variables = dict(os.environ)
    if _NEED_ENGINE & set(levels):
        with progress("setup") as report:
            variables |= environment_of(ensure_toolchain(report))
    for command in _commands(levels):
        started = time.monotonic()
        CONSOLE.print(f"$ {' '.join(command[2:])}", markup=False, style="bold")
        code = subprocess.run(command, cwd=PROJECT, env=variables, check=False).returncode
        CONSOLE.print(f"{time.monotonic() - started:.0f} s", markup=False)
        if code:
            return code
    return 0


def _commands(levels: Sequence[str]) -> list[list[str]]:
    python = [sys.executable, "-m"]
    sources = [name for name in _SOURCES if (PROJECT / name).exists()]
    commands = []
    if "lint" in levels:
        commands += [[*python, "ruff", "check", *sources], [*python, "ruff", "format", "--check", *sources]]
    if "types" in levels:
        commands.append([*python, "pyright"])
    tested = [f"tests/{level}" for level in LEVELS if level in levels and (PROJECT / "tests" / level).is_dir()]
    if tested:
        commands.append([*python, "pytest", "--durations=15", *tested])
    return commands
