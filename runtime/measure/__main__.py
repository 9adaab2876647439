"""`python3 -m runtime.measure observe`: writes one JSON line at once and one at each interval.

It ends with its standard input, so that an observation ends with the controller that asked for it.
"""

import json
import os
import select
import sys
import time
from pathlib import Path

from runtime.measure.observe import observe


def main() -> int:
    """Observes until standard input is closed; returns the exit code."""
    if sys.argv[1:] != ["observe"]:
        print("usage: python3 -m runtime.measure observe", file=sys.stderr)
        return 2
    request = json.loads(sys.stdin.buffer.readline())
    due = time.monotonic()
    while True:
        print(json.dumps({"event": "sample", **observe(Path("/"))}), flush=True)
        due += request["interval_seconds"]
        if _input_has_ended(due):
            return 0


def _input_has_ended(until: float) -> bool:
    while (left := until - time.monotonic()) > 0:
        if select.select([0], [], [], left)[0] and not os.read(0, 4096):
            return True
    return False


sys.exit(main())
