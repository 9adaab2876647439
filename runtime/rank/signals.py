"""The signals of a first process, taken one by one where it is ready for them instead of in handlers."""

import signal
import time

CHILD_ENDED = signal.SIGCHLD
_TAKEN = frozenset((signal.SIGCHLD, signal.SIGTERM, signal.SIGINT))


def take_over() -> None:
    """From now on these signals wait until they are asked for; must run before the first thread is made.

    The kernel keeps a blocked signal even for the first process of a container, which gets no other without a handler.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)


def taken_within(seconds: float) -> set[int]:
    """Waits for a signal, at most so long, and returns all that have come."""
    found: set[int] = set()
    deadline = time.monotonic() + seconds
    while True:
        information = signal.sigtimedwait(_TAKEN, 0.0 if found else max(0.0, deadline - time.monotonic()))
        if information is None:
            return found
        found.add(information.si_signo)
