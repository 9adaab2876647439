"""Takes a stack back to a Release that was ready: exactly that one, whatever stack file and catalogue say by now."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ops.chosen_release import RELEASE_FILE
from ops.errors import OperationError
from ops.places import PROJECT
from ops.pulumi import run_pulumi
from ops.release_history import StackHistory, read_release
from spec.history import HistoryError, ReadyRelease, named, way_back


def chosen(history: StackHistory, wanted: str | None) -> ReadyRelease:
    """Returns the Release to go back to.

    Args:
        history: of the stack.
        wanted: beginning of its hash; none takes the last that was ready and is not the one that runs.

    Raises:
        OperationError: there is none.
        SpecificationError: this version of the program cannot read it.
    """
    try:
        found = named(history.ready, wanted) if wanted else way_back(history.ready, history.begun)
    except HistoryError as error:
        raise OperationError(f"stack {history.stack}: {error}") from None
    read_release(found, history.stack)
    return found


def deploy(
    ready: ReadyRelease,
    stack: str,
    arguments: list[str],
    variables: Mapping[str, str],
    project: Path = PROJECT,
) -> int:
    """Runs `pulumi ARGUMENTS` with this Release instead of what the stack file says; returns its exit code."""
    with release_file(ready) as path:
        return run_pulumi([*arguments, "--stack", stack], {**variables, RELEASE_FILE: str(path)}, project)


@contextmanager
def release_file(ready: ReadyRelease) -> Iterator[Path]:
    """Writes a kept Release into a file that only we can read, and that is gone afterwards."""
    with release_text_file(ready.release) as path:
        yield path


@contextmanager
def release_text_file(release: str) -> Iterator[Path]:
    """Writes a Release, as canonical JSON, into a file that only we can read, and that is gone afterwards."""
    descriptor, name = tempfile.mkstemp(prefix="gb10-serving-release-", suffix=".json")
    path = Path(name)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(release)
        yield path
    finally:
        path.unlink()
