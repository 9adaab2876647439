"""`python3 -m runtime.fabric_check listen`: lets peers connect until standard input is closed."""

import json
import sys

from runtime.fabric_check.mesh import Listener


def main() -> int:
    """Listens as one line of standard input asks; returns the exit code."""
    if sys.argv[1:] != ["listen"]:
        print("usage: python3 -m runtime.fabric_check listen", file=sys.stderr)
        return 2
    request = json.loads(sys.stdin.buffer.readline())
    try:
        listener = Listener(request["addresses"], request["ports_each"], request["password"])
    except OSError as error:
        print(f"cannot listen on {', '.join(request['addresses'])}: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"event": "listening", "ports": listener.ports}), flush=True)
    sys.stdin.buffer.read()
    listener.close()
    return 0


sys.exit(main())
