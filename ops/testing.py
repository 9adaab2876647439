"""`fleet test`: lint, types and the levels of tests, in the order in which they are cheapest to fail."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from ops.environment import environment_of
from ops.errors import OperationError
from ops.places import PROJECT
from ops.progress import CONSOLE, progress
from ops.toolchain import ensure_toolchain

LEVELS = ("lint", "types", "unit", "graph", "patches", "engine", "lab")
_NEED_ENGINE = {"engine", "lab"}
_PYTHON = [sys.executable, "-m"]
_SOURCES = ("__main__.py", "spec", "components", "runtime", "ops", "lab", "bench", "tests", "tools")


def run_tests(levels: Sequence[str]) -> int:
    """Runs the levels. Returns 0, or the code of the first command that failed.

    Tests on virtual nodes mostly wait, so the others run beside them; their output comes after.

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
    for command in _checks(levels):
        if code := _run(command, variables):
            return code
    folders = [f"tests/{level}" for level in LEVELS if level in levels and (PROJECT / "tests" / level).is_dir()]
    return _run_pytest(folders, bool(_NEED_ENGINE & set(levels)), variables) if folders else 0


def _checks(levels: Sequence[str]) -> list[list[str]]:
    sources = [name for name in _SOURCES if (PROJECT / name).exists()]
    commands = []
    if "lint" in levels:
        commands += [[*_PYTHON, "ruff", "check", *sources], [*_PYTHON, "ruff", "format", "--check", *sources]]
    if "types" in levels:
        commands.append([*_PYTHON, "pyright"])
    return commands


def _run(command: list[str], variables: dict[str, str]) -> int:
    started = time.monotonic()
    CONSOLE.print(f"$ {' '.join(command[2:])}", markup=False, style="bold")
    code = subprocess.run(command, cwd=PROJECT, env=variables, check=False).returncode
    CONSOLE.print(f"{time.monotonic() - started:.0f} s", markup=False)
    return code


def _run_pytest(folders: list[str], on_nodes: bool, variables: dict[str, str]) -> int:
    pytest = [*_PYTHON, "pytest", "--durations=10"]
    if not on_nodes:
        return _run([*pytest, *folders], variables)
    with tempfile.TemporaryFile("w+") as output:
        beside = subprocess.Popen(
            [*pytest, "-m", "not nodes", *folders], cwd=PROJECT, env=variables, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            code = _run([*pytest, "-m", "nodes", *folders], variables)
            beside.wait()
        finally:
            beside.kill()
        output.seek(0)
        sys.stdout.write(output.read())
        sys.stdout.flush()
    return code or beside.returncode
