"""Running programs of this machine, with errors that can be read."""

import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence

from lab.errors import LabError

Report = Callable[[str], None]

_TAIL_LINES = 12


def tail(text: str, lines: int = _TAIL_LINES) -> str:
    """Returns the last lines of a program's output."""
    return "\n".join(text.strip().splitlines()[-lines:])


def run(
    argv: Sequence[str],
    *,
    what: str,
    way_out: str = "Read the program's own message above.",
    input_bytes: bytes | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_seconds: float = 600,
) -> str:
    """Runs a program to its end.

    A lock that the caller holds (lab/locks.py) is inherited: it stays taken until the program has ended, even if this
    process is killed before.

    Args:
        argv: program and arguments.
        what: what is being done, for the error.
        way_out: what the operator can do if it fails.
        input_bytes: what the program reads; nothing if absent.
        environment: the whole environment; this process's own if absent.
        timeout_seconds: how long it may take.

    Returns:
        The program's output.

    Raises:
        LabError: the program is missing, failed or took too long.
    """
    try:
        done = subprocess.run(
            argv,
            input=input_bytes if input_bytes is not None else b"",
            capture_output=True,
            env=environment,
            timeout=timeout_seconds,
            check=False,
            close_fds=False,
        )
    except FileNotFoundError as error:
        raise LabError(what, f"the program {argv[0]} is not there", f"Install {argv[0]}.") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(what, f"no end after {timeout_seconds:.0f} s: {shlex.join(argv)}", way_out) from error
    printed = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        message = tail(done.stderr.decode(errors="replace")) or tail(printed)
        raise LabError(what, f"{shlex.join(argv)} ended with {done.returncode}\n{message}", way_out)
    return printed


def succeeds(argv: Sequence[str], *, timeout_seconds: float = 20) -> bool:
    """Tells whether a program ends well within the time: a question whose answer may be no."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_seconds, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def dying_with_us(argv: Sequence[str]) -> list[str]:
    """Returns the command that runs `argv` in process and mount namespaces of its own.

    All its processes and mounts vanish when it ends or when this process is killed in the middle.
    """
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    # A program may shake off the signal at its parent's death, as apt-get does; the shell before it does not.
    shell = ["sh", "-c", '"$@"; exit $?', "sh"]
    return ["setpriv", "--pdeathsig", "KILL", *namespaces, *shell, *argv]
