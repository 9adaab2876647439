"""`python3 -m runtime.build check|apply|verify FILE [--report FILE]`: runs inside the image that is built or judged.

FILE is the step's or the verification's JSON, `-` reads it from standard input. The report is one line of JSON on
standard output, and in the file that --report names. Exit codes: 0 done, 1 it says why not on standard error, 2 wrong
call.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from runtime.build.atomic import Change, replace_all
from runtime.build.checks import Check
from runtime.build.errors import BuildError
from runtime.build.patcher import apply_step, check_base, summary
from runtime.build.verify import verify


def main() -> int:
    """Runs one verb and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python3 -m runtime.build", description=__doc__)
    parser.add_argument("verb", choices=["check", "apply", "verify"])
    parser.add_argument("file", help="the JSON, or - for standard input")
    parser.add_argument("--report", type=Path, help="where the report is kept")
    arguments = parser.parse_args()
    text = sys.stdin.read() if arguments.file == "-" else Path(arguments.file).read_text(encoding="utf-8")
    try:
        report = _run(arguments.verb, json.loads(text), Path(arguments.file).parent)
    except (BuildError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    line = json.dumps(report, sort_keys=True, separators=(",", ":"))
    print(line)
    if arguments.report is not None:
        replace_all([Change(arguments.report, f"{line}\n".encode())])
    return 0 if report["ok"] else 1


def _run(verb: str, request: dict[str, Any], folder: Path) -> dict[str, Any]:
    if verb == "check":
        return {"ok": True, "checks": check_base(request)}
    if verb == "apply":
        report = apply_step(request, folder)
        print(summary(report), file=sys.stderr)
        return {"ok": True, **report}
    report = verify(request)
    for check in report["checks"]:
        if check["outcome"] != "passed":
            print(Check(**check), file=sys.stderr)
    return report


if __name__ == "__main__":
    sys.exit(main())
