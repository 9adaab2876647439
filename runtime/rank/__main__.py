"""`python3 -E -s -B .../runtime/rank/__main__.py REQUEST`: the first process of a rank's container.

Exit codes: the engine's own when the rank was asked to stop or a job has ended; 70 for a job that a peer ended; 78 when
the container is not what a supervisor needs.
"""

import sys

sys.path.insert(0, __file__.rsplit("/", 3)[0])

from runtime.rank import signals


def main() -> int:
    """Takes the signals before anything else: the kernel drops what comes for a first process that is not ready."""
    signals.take_over()
    from runtime.rank.start import start  # this takes a while

    return start(sys.argv[1])


sys.exit(main())
