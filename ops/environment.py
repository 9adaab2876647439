"""The environment in which `pulumi` runs: engine, plugins, backend."""

import os
from pathlib import Path

from ops.places import PROJECT, STATE
from ops.progress import Report
from ops.toolchain import Toolchain, ensure_toolchain


def pulumi_environment(report: Report) -> dict[str, str]:
    """Returns the variables to set so that `pulumi` works in this checkout; makes what is missing.

    A backend and a passphrase that the operator has chosen stay as they are.

    Raises:
        ToolchainError: the engine can neither be found, downloaded nor built.
    """
    return environment_of(ensure_toolchain(report))


def environment_of(toolchain: Toolchain) -> dict[str, str]:
    """Returns the variables for a toolchain that is there."""
    variables = toolchain.environment(PROJECT / ".venv")
    if "PULUMI_BACKEND_URL" not in os.environ:
        variables["PULUMI_BACKEND_URL"] = f"file://{_existing(STATE / 'stacks')}"
    if not {"PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE"} & os.environ.keys():
        variables["PULUMI_CONFIG_PASSPHRASE"] = ""
    return variables


def has_stacks() -> bool:
    """Whether there can be stacks at all: a backend was chosen, or ours has been used."""
    return "PULUMI_BACKEND_URL" in os.environ or (STATE / "stacks").is_dir()


def _existing(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
