"""Tells the controller how a verb gets on; everything else on standard error is an error."""

import sys

PREFIX = "progress: "


def tell(text: str) -> None:
    """Writes one line of progress."""
    print(f"{PREFIX}{text}", file=sys.stderr, flush=True)
