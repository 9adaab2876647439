"""Where things lie on the controller."""

import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
"""The checkout."""

STATE = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "gb10-serving"
"""What must not be lost: stack state where no other backend is chosen."""
