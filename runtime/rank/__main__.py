"""`python3 -E -s -B .../runtime/rank/__main__.py REQUEST`: the first process of a rank's container.

Exit codes: the engine's own when the rank was asked to stop or a job has ended; 70 for a job that a peer ended; 78 when
the container is not what a supervisor needs.
"""

import sys

sys.path.insert(0, __file__.rsplit("/", 3)[0])

from runtime.rank import signals

# Before anything else: the kernel drops what comes for a first process that neither handles nor blocks it.
signals.take_over()

import json

from runtime.rank import processes
from runtime.rank.exchange import read_key
from runtime.rank.guard import keep_runnable
from runtime.rank.record import AnotherSupervisorError, Record
from runtime.rank.request import RankRequest
from runtime.rank.supervisor import Supervisor
from runtime.rank.surroundings import own_identity

_NOT_WHAT_IS_NEEDED = 78


def main() -> int:
    """Runs one rank and returns the exit code."""
    request = RankRequest.from_plain(json.loads(sys.argv[1]))
    try:
        record = Record(request.record_folder)
        key = read_key(request.secrets_folder / "group-key")
        identity = own_identity(request)
    except (AnotherSupervisorError, OSError, ValueError) as error:
        print(f"supervisor: {error}", file=sys.stderr, flush=True)
        return _NOT_WHAT_IS_NEEDED
    processes.become_reaper()
    for refused in keep_runnable():
        print(f"supervisor: {refused}", file=sys.stderr, flush=True)
    return Supervisor(request, record, identity, key).run()


sys.exit(main())
