"""`fleet test`: lint, types and the levels of tests, in the order in which they are cheapest to fail."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ops.environment import environment_of
from ops.errors import OperationError
from ops.places import PROJECT
from ops.progress import CONSOLE, progress
from ops.toolchain import ensure_toolchain

LEVELS = ("lint", "types", "unit", "graph", "patches", "engine", "lab")


@dataclass(frozen=True)
class Share:
    """Tests on virtual nodes that run one after the other, on a fabric of their own.

    Attributes:
        level: whose tests.
        fabric: its name.
        subnets: those of tests/virtual.py, management first.
    """

    level: str
    fabric: str
    subnets: str

    @property
    def variables(self) -> dict[str, str]:
        """What tells tests/virtual.py which fabric it has."""
        return {"GB10_SERVING_TEST_FABRIC": self.fabric, "GB10_SERVING_TEST_SUBNETS": self.subnets}


SHARES = (
    Share("engine", "test", "198.51.100.128/28 198.51.100.144/28"),
    Share("lab", "test-lab", "198.51.100.160/28 198.51.100.176/28"),
)
"""Two: a third made two cores so busy (load 17) that it gained three minutes of 36."""

_PYTHON = [sys.executable, "-m"]
_SOURCES = ("__main__.py", "spec", "components", "runtime", "ops", "lab", "bench", "tests", "tools")


def run_tests(levels: Sequence[str]) -> int:
    """Runs the levels. Returns 0, or the code of the first command that failed.

    Tests on virtual nodes mostly wait, so they run side by side on several fabrics, and beside all others. The first
    part is shown as it goes, what the others say comes after it.

    Raises:
        OperationError: a level is not known.
    """
    unknown = [level for level in levels if level not in LEVELS]
    if unknown:
        raise OperationError(f"no test level {', '.join(unknown)}; there are: {', '.join(LEVELS)}")
    variables = dict(os.environ)
    shares = [share for share in SHARES if share.level in levels]
    if shares:
        with progress("setup") as report:
            variables |= environment_of(ensure_toolchain(report))
    for command in _checks(levels):
        if code := _run(command, variables):
            return code
    folders = [f"tests/{level}" for level in LEVELS if level in levels and (PROJECT / "tests" / level).is_dir()]
    return _run_pytest(folders, shares, variables) if folders else 0


def _checks(levels: Sequence[str]) -> list[list[str]]:
    sources = [name for name in _SOURCES if (PROJECT / name).exists()]
    commands = []
    if "lint" in levels:
        commands += [[*_PYTHON, "ruff", "check", *sources], [*_PYTHON, "ruff", "format", "--check", *sources]]
    if "types" in levels:
        commands.append([*_PYTHON, "pyright"])
    return commands


def _show(command: list[str]) -> None:
    CONSOLE.print(f"$ {' '.join(command[2:])}", markup=False, style="bold")


def _run(command: list[str], variables: dict[str, str]) -> int:
    started = time.monotonic()
    _show(command)
    code = subprocess.run(command, cwd=PROJECT, env=variables, check=False).returncode
    CONSOLE.print(f"{time.monotonic() - started:.0f} s", markup=False)
    return code


def _run_pytest(folders: list[str], shares: list[Share], variables: dict[str, str]) -> int:
    pytest = [*_PYTHON, "pytest", "--durations=10"]
    if not shares:
        return _run([*pytest, *folders], variables)
    runs = [([*pytest, "-m", "nodes", f"tests/{share.level}"], variables | share.variables) for share in shares]
    (first, first_variables), *others = [*runs, ([*pytest, "-m", "not nodes", *folders], variables)]
    with contextlib.ExitStack() as stack:
        beside = [stack.enter_context(contextlib.closing(_Beside(command, own))) for command, own in others]
        codes = [_run(first, first_variables), *(run.ended() for run in beside)]
    return next((code for code in codes if code), 0)


class _Beside:
    """A command whose output waits until it is asked how it ended."""

    def __init__(self, command: list[str], variables: dict[str, str]) -> None:
        self._command = command
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the command
        self._process = subprocess.Popen(
            command, cwd=PROJECT, env=variables, stdout=self._output, stderr=subprocess.STDOUT
        )

    def ended(self) -> int:
        """Waits for its end, shows what it said and returns its code."""
        self._process.wait()
        _show(self._command)
        self._output.seek(0)
        sys.stdout.write(self._output.read())
        sys.stdout.flush()
        return self._process.returncode

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()
        self._output.close()
