"""Where things lie on the controller."""

import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
"""The checkout."""

STATE = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "gb10-serving"
"""What must not be lost: stack state where no other backend is chosen."""


def cache_folder() -> Path:
    """Returns the folder of everything that can be made again; the environment's GB10_SERVING_CACHE moves it."""
    return Path(os.environ.get("GB10_SERVING_CACHE") or "~/.cache/gb10-serving").expanduser()
