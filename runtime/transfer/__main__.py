"""`python3 -m runtime.transfer receive|send|inspect`: one node's part of a transfer, for as long as it takes.

The request is the first line of JSON on standard input; it carries the transfer's one-time secret, which is therefore
in no argument and no log. See runtime/transfer/agent.py for what follows.
Exit codes: 0 the controller ended it, 1 this node cannot do its part and says why, 2 no such verb.
"""

import sys

from runtime.transfer.agent import ControllerGone, ReceivingAgent, SendingAgent, Session, inspect
from runtime.transfer.errors import TransferError

VERBS = {
    "receive": lambda session, request: ReceivingAgent(session, request).run(),
    "send": lambda session, request: SendingAgent(session, request).run(),
    "inspect": inspect,
}


def main() -> int:
    """Runs the verb named by the first argument and returns the exit code."""
    verb = VERBS.get(sys.argv[1]) if len(sys.argv) == 2 else None
    if verb is None:
        print(f"usage: python3 -m runtime.transfer {'|'.join(VERBS)}", file=sys.stderr)
        return 2
    session = Session()
    try:
        verb(session, session.request())
    except ControllerGone:
        return 0
    except (TransferError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


sys.exit(main())
