"""Keeps an interrupted program from hiding the one error that matters behind its traceback."""

import sys
from types import TracebackType


def end_quietly_when_interrupted() -> None:
    """Makes an interrupt end the program without a traceback; every other exception is shown as before.

    When a resource has failed, the engine interrupts the program, which is then still waiting for others. Python would
    print some ninety lines around the failed resource's message (shared/facts/engine.md section 7).
    """
    shown = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            shown(kind, error, trace)
            return
        # What the SDK still had open complains while it is being torn down.
        sys.unraisablehook = _ignore

    sys.excepthook = hook


def _ignore(_: object) -> None:
    return
