"""The result: which engine is used and what has to be in the environment for it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Origin = Literal["official", "built from Go modules"]
"""Where a part comes from."""


@dataclass(frozen=True)
class ToolchainPart:
    """One program of the engine."""

    name: str
    version: str
    origin: Origin
    path: Path


@dataclass(frozen=True)
class Toolchain:
    """A complete engine."""

    pulumi: Path
    """The program to run."""
    home: Path
    """PULUMI_HOME to run it with."""
    parts: tuple[ToolchainPart, ...]
    """pulumi, language-python, docker-provider, command-provider."""

    def part(self, name: str) -> ToolchainPart:
        """Returns a part by its name.

        Raises:
            KeyError: there is no such part.
        """
        for part in self.parts:
            if part.name == name:
                return part
        raise KeyError(name)

    def environment(self, virtual_environment: Path) -> dict[str, str]:
        """Returns the variables to set for running `pulumi`; all others stay as they are.

        Args:
            virtual_environment: The folder of the environment in which programs run.
        """
        folder = str(self.pulumi.parent)
        # A folder that is named twice in PATH is harmless, but grows with every nested call.
        rest = [entry for entry in os.environ.get("PATH", os.defpath).split(os.pathsep) if entry != folder]
        variables = {
            "PATH": os.pathsep.join([folder, *rest]),
            "PULUMI_HOME": str(self.home),
            "PULUMI_SKIP_UPDATE_CHECK": "true",
        }
        if any(part.origin != "official" for part in self.parts):
            variables["PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION"] = "true"
        if self.part("language-python").origin != "official":
            # The language host that can be built is an old one: it does not read `virtualenv` in Pulumi.yaml.
            variables["PULUMI_PYTHON_CMD"] = str(virtual_environment / "bin" / "python")
        return variables

    def as_data(self) -> dict[str, Any]:
        """Returns everything as plain data, for JSON."""
        return {
            "pulumi": str(self.pulumi),
            "home": str(self.home),
            "parts": [
                {"name": part.name, "version": part.version, "origin": part.origin, "path": str(part.path)}
                for part in self.parts
            ],
        }
