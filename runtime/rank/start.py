"""Prepares the first process and runs its supervisor."""

import json
import sys

from runtime.rank import processes
from runtime.rank.exchange import read_key
from runtime.rank.guard import keep_runnable
from runtime.rank.record import AnotherSupervisorError, Record
from runtime.rank.request import RankRequest
from runtime.rank.supervisor import Supervisor
from runtime.rank.surroundings import own_identity

_NOT_WHAT_IS_NEEDED = 78


def start(request_text: str) -> int:
    """Runs one rank and returns the exit code of its container."""
    request = RankRequest.from_plain(json.loads(request_text))
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
