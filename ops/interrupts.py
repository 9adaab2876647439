"""Keeps an interrupted program from hiding the one error that matters behind its traceback."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pulumi

_INTERRUPTED = 130
_FAREWELL = "Resource monitor has terminated, shutting down"


def end_quietly_when_interrupted() -> None:
    """Makes an interrupt end the program at once and without a traceback.

    When a resource has failed, the engine interrupts the program, which is then still waiting for others. Python would
    print some ninety lines around the failed resource's message (shared/facts/engine.md section 7), wherever the
    interrupt happens to arrive. The program holds nothing that must be given back.
    """
    signal.signal(signal.SIGINT, lambda *_: _end())
    pulumi.log.error = _without_farewell(pulumi.log.error)


def _without_farewell(error: Callable[..., None]) -> Callable[..., None]:
    """Leaves out the line with which the SDK sometimes notices first that the engine is done."""

    def log(message: str, *arguments: Any, **options: Any) -> None:
        if message != _FAREWELL:
            error(message, *arguments, **options)

    return log


def _end() -> None:
    sys.stdout.flush()
    os._exit(_INTERRUPTED)
