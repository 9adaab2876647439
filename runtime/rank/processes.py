"""Processes below the first one: started, waited for, ended, and confirmed gone."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.05


def become_reaper() -> None:
    """Makes orphans below this process its children, as they are for the first process of a container anyway."""
    import ctypes

    if os.getpid() != 1:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(argv: Sequence[str], environment: Mapping[str, str], output: int | None = None) -> int:
    """Starts a program in a process group of its own, with every signal as a new process has it.

    It inherits input, output and error as they are, so what it writes is not touched.

    Args:
        argv: found on the PATH of its environment.
        environment: all of it.
        output: descriptor that takes its output instead.

    Returns:
        Its process id.

    Raises:
        OSError: there is no such program, or it cannot be run.
    """
    path = _find(argv[0], environment)
    actions = [(os.POSIX_SPAWN_DUP2, output, 1)] if output is not None else []
    return os.posix_spawn(
        path,
        list(argv),
        dict(environment),
        file_actions=actions,
        setpgroup=0,
        setsigmask=[],
        setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
    )


def prefer_as_victim(process: int) -> None:
    """Has the kernel's OOM killer take this process and those that it starts, rather than anything else."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{process}/oom_score_adj").write_text("1000")


def reap() -> dict[int, int]:
    """Collects every process that has ended: exit codes by id, 128 + N for one that signal N ended."""
    ended: dict[int, int] = {}
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if process == 0:
            return ended
        code = os.waitstatus_to_exitcode(status)
        ended[process] = 128 - code if code < 0 else code


def descendants() -> set[int]:
    """Returns all living processes below this one; zombies do not count."""
    if os.getpid() == 1:
        return {process for process in _processes() if process != 1 and _parent(process) is not None}
    children: dict[int, set[int]] = {}
    for process in _processes():
        parent = _parent(process)
        if parent is not None:
            children.setdefault(parent, set()).add(process)
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), set()) - found
        found |= below
        waiting.extend(below)
    return found


def kill_all() -> None:
    """Kills every process below this one; as the first process of a container, with one call that needs no memory."""
    if os.getpid() == 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        return
    for process in descendants():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def end_all(grace_seconds: float, pause: Callable[[float], None], tell: Callable[[str], None]) -> None:
    """Ends every process below this one and returns when they are gone.

    Args:
        grace_seconds: between the request to end and the kill.
        pause: lets time pass and collects what has ended.
        tell: takes a line about processes that do not go.
    """
    _signal_all(signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while descendants() and time.monotonic() < deadline:
        pause(_POLL_SECONDS)
    next_tell = time.monotonic() + 5
    while left := descendants():
        kill_all()
        pause(_POLL_SECONDS)
        if time.monotonic() >= next_tell:
            tell(f"{len(left)} processes do not go although they were killed: {sorted(left)[:8]}")
            next_tell = time.monotonic() + 5


def ask_to_end(process: int) -> None:
    """Passes a request to stop on to a process, which may have ended meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)


def _signal_all(number: int) -> None:
    for process in descendants():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _parent(process: int) -> int | None:
    """Returns the parent of a living process, none for one that has ended."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, parent = text.rsplit(")", 1)[1].split()[:2]
    return None if state in "ZX" else int(parent)


def _find(program: str, environment: Mapping[str, str]) -> str:
    if "/" in program:
        return program
    for folder in environment.get("PATH", os.defpath).split(":"):
        path = Path(folder) / program
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    raise FileNotFoundError(f"there is no program {program} on the PATH of the image")
