"""Runs one switch in a process of its own, which a test can kill: FOLDER FROM... TO.

Does what `./fleet switch --yes` does, in the folder of the test's project; the environment is the project's.
"""

import os
import sys
from pathlib import Path

from ops.switch import Controller, carry_out, check, plan_switch


def main() -> None:
    folder, *stacks = sys.argv[1:]
    controller = Controller(dict(os.environ), lambda text: print(text, flush=True), Path(folder))
    plan = plan_switch(stacks[:-1], stacks[-1], controller)
    result = carry_out(plan, check(plan, controller), controller)
    print(f"ended: {result.outcome}", flush=True)


main()
