"""Shows that something is under way, on standard error, so that standard output stays for programs."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

Report = Callable[[str], None]
"""Receives one line about what is being done now."""

CONSOLE = Console(stderr=True, highlight=False)


@contextmanager
def progress(title: str) -> Iterator[Report]:
    """Shows a spinner with the latest line on a terminal, and plain lines with the time elsewhere."""
    started = time.monotonic()

    def elapsed() -> str:
        return f"{time.monotonic() - started:5.0f} s"

    if not CONSOLE.is_terminal:
        yield lambda text: CONSOLE.print(f"{elapsed()}  {text}", soft_wrap=True, markup=False)
        return
    with CONSOLE.status(title) as status:

        def report(text: str) -> None:
            CONSOLE.print(f"{elapsed()}  {text}", markup=False)
            status.update(f"{title}: {text}")

        yield report
