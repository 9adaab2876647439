"""Keeps an interrupted program from hiding the one error that matters behind its traceback."""

import os
import signal
import sys

_INTERRUPTED = 130


def end_quietly_when_interrupted() -> None:
    """Makes an interrupt end the program at once and without a traceback.

    When a resource has failed, the engine interrupts the program, which is then still waiting for others. Python would
    print some ninety lines around the failed resource's message (shared/facts/engine.md section 7), wherever the
    interrupt happens to arrive. The program holds nothing that must be given back.
    """
    signal.signal(signal.SIGINT, lambda *_: _end())


def _end() -> None:
    sys.stdout.flush()
    os._exit(_INTERRUPTED)
