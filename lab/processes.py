"""Background processes that are known by number and start time, so that a reused number is never taken for them."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError

# The process writes its own record before it becomes the program: there is no moment in which it runs unrecorded.
_LAUNCHER = (
    'ulimit -Sn "$(ulimit -Hn)"; '
    'printf "%s %s\\n" "$$" "$(cut -d" " -f22 "/proc/$$/stat")" > "$0.new" && mv "$0.new" "$0" && exec "$@"'
)
_POLL_SECONDS = 0.05
_RECORD_PATIENCE_SECONDS = 10


@dataclass(frozen=True)
class ProcessIdentity:
    """A process of this machine since its last boot.

    Attributes:
        number: the process id.
        start_time: clock ticks after boot at which it started, as /proc has it.
    """

    number: int
    start_time: int

    @property
    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        seen = _state_and_start_time(self.number)
        return seen is not None and seen[0] != "Z" and seen[1] == self.start_time


def _state_and_start_time(number: int) -> tuple[str, int] | None:
    try:
        text = Path(f"/proc/{number}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The program's name stands in parentheses and may contain anything.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def read_record(record: Path) -> ProcessIdentity | None:
    """Returns the process that a record names, running or not; none without a readable record."""
    try:
        number, start_time = record.read_text().split()
        return ProcessIdentity(int(number), int(start_time))
    except (FileNotFoundError, ValueError):
        return None


def recorded_alive(record: Path) -> ProcessIdentity | None:
    """Returns the process of a record if it still runs."""
    process = read_record(record)
    return process if process is not None and process.alive else None


def start(argv: Sequence[str], record: Path, log: Path) -> ProcessIdentity:
    """Starts a program in the background, in a session of its own, and records it.

    Args:
        argv: program and arguments.
        record: file that receives number and start time.
        log: file that receives what the program prints.

    Raises:
        LabError: the program did not start.
    """
    record.unlink(missing_ok=True)
    with log.open("wb") as output:
        subprocess.run(
            ["setsid", "--fork", "sh", "-c", _LAUNCHER, str(record), *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=True,
        )
    end = time.monotonic() + _RECORD_PATIENCE_SECONDS
    while (process := read_record(record)) is None:
        if time.monotonic() >= end:
            raise LabError(f"start {argv[0]}", f"no process appeared; its output is in {log}", "Try again.")
        time.sleep(_POLL_SECONDS)
    return process


def _signal(process: ProcessIdentity, number: signal.Signals) -> None:
    if process.alive:
        try:
            os.kill(process.number, number)
        except ProcessLookupError:
            return


def _wait_for_end(process: ProcessIdentity, patience_seconds: float) -> bool:
    end = time.monotonic() + patience_seconds
    while process.alive:
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def end(record: Path, patience_seconds: float) -> None:
    """Ends the process of a record, politely at first, and removes the record.

    Raises:
        LabError: the process outlived SIGKILL.
    """
    process = recorded_alive(record)
    if process is not None:
        _signal(process, signal.SIGTERM)
        if not _wait_for_end(process, patience_seconds):
            _signal(process, signal.SIGKILL)
            if not _wait_for_end(process, patience_seconds):
                raise LabError(f"end process {process.number}", "it outlived SIGKILL", "Restart the machine.")
    record.unlink(missing_ok=True)
