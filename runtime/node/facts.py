"""What a node is: read once at the start, so that everything else knows that it answers."""

import os
import platform
from typing import Any

from runtime.node.docker import docker


def facts(_: dict[str, Any]) -> dict[str, str]:
    """Returns host name, architecture, kernel, Python and Docker of the node."""
    return {
        "architecture": platform.machine(),
        "docker": docker("version", "--format", "{{.Server.Version}}").stdout.strip(),
        "host": platform.node(),
        "kernel": os.uname().release,
        "python": platform.python_version(),
    }
