"""How a node is looked at: files below a root, and programs that only tell."""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ANSWER_SECONDS = 20


class CouldNotAsk(Exception):  # noqa: N818 - it is an answer, not an error
    """Raised when a check gets no answer, which is not the same as a good one; the text says why."""


@dataclass(frozen=True)
class Found:
    """One thing that is not as it should be.

    Attributes:
        id: of the entry in catalog/doctor that says why it matters and what cures it.
        read: what was read, and where.
        values: for the cure's text.
    """

    id: str
    read: str
    values: dict[str, Any]


def run_program(command: Sequence[str]) -> str:
    """Runs a program that only tells, and returns what it says.

    Raises:
        CouldNotAsk: it is not there, fails, or does not answer in time.
    """
    try:
        result = subprocess.run(
            [*command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
    except FileNotFoundError:
        raise CouldNotAsk(f"this node has no {command[0]}") from None
    except subprocess.TimeoutExpired:
        raise CouldNotAsk(f"`{' '.join(command)}` does not answer within {_ANSWER_SECONDS} s") from None
    if result.returncode:
        said = (result.stderr or result.stdout).strip()[-300:]
        raise CouldNotAsk(f"`{' '.join(command)}` failed ({result.returncode}): {said}")
    return result.stdout


@dataclass(frozen=True)
class Look:
    """A node, or a tree that stands for one.

    Attributes:
        request: what the controller knows of it (`ops/doctor/requests.py` says which keys).
        root: `/`, or the top of a tree.
        run: runs a program.
    """

    request: dict[str, Any]
    root: Path = Path("/")
    run: Callable[[Sequence[str]], str] = run_program

    def text(self, path: str) -> str | None:
        """Returns a file's content, none where there is no such file.

        Raises:
            CouldNotAsk: it is there and cannot be read.
        """
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace")
        except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
            return None
        except OSError as error:
            raise CouldNotAsk(f"{path}: {error.strerror}") from None

    def needed(self, path: str) -> str:
        """Returns the content of a file that every node has.

        Raises:
            CouldNotAsk: it is not there, or cannot be read.
        """
        found = self.text(path)
        if found is None:
            raise CouldNotAsk(f"{path} is not there")
        return found

    def processes(self, name: str) -> list[tuple[int, list[str]]]:
        """Returns number and argv of each process of that name."""
        found = []
        for folder in sorted((self.root / "proc").glob("[0-9]*")):
            comm = self.text(f"/proc/{folder.name}/comm")
            if comm is not None and comm.strip() == name:
                command = self.text(f"/proc/{folder.name}/cmdline") or ""
                found.append((int(folder.name), [word for word in command.split("\0") if word]))
        return found

    def meminfo_bytes(self, key: str) -> int:
        """Returns one figure of /proc/meminfo."""
        for line in self.needed("/proc/meminfo").splitlines():
            name, _, rest = line.partition(":")
            if name == key:
                return int(rest.split()[0]) * 1024
        raise CouldNotAsk(f"/proc/meminfo has no {key}")
