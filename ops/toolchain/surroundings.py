"""What the search for an engine depends on: folders, environment, platform."""

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ops.places import PROJECT, cache_folder
from ops.toolchain.errors import ToolchainError

_SYSTEMS = {"linux": "linux", "darwin": "darwin"}
_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@dataclass(frozen=True)
class Platform:
    """An operating system and processor, in Go's words."""

    system: str
    machine: str

    def __str__(self) -> str:
        return f"{self.system}/{self.machine}"

    @classmethod
    def of_this_machine(cls) -> "Platform":
        """Returns the platform that this runs on.

        Raises:
            ToolchainError: Pulumi does not exist for it.
        """
        system, machine = sys.platform, platform.machine()
        if system not in _SYSTEMS or machine.lower() not in _MACHINES:
            raise ToolchainError(
                f"Pulumi cannot be set up on {system}/{machine}: it takes Linux or macOS, on x86_64 or arm64. "
                "Run from such a machine; the nodes themselves are reached over ssh."
            )
        return cls(_SYSTEMS[system], _MACHINES[machine.lower()])


@dataclass(frozen=True)
class Surroundings:
    """Where to look for the engine and where to put it."""

    sources: Path
    """The folder `engine/` of the checkout."""
    cache: Path
    """Folder for everything that is made here once."""
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """The operator's environment."""
    releases: str = "https://get.pulumi.com/releases"
    """Where official releases lie."""
    platform: Platform = field(default_factory=Platform.of_this_machine)

    @classmethod
    def of_this_machine(cls) -> "Surroundings":
        """Returns the surroundings of this process."""
        return cls(sources=PROJECT / "engine", cache=cache_folder())

    @property
    def engine_cache(self) -> Path:
        """Folder for programs, one folder each."""
        return self.cache / "engine"

    @property
    def own_home(self) -> Path:
        """PULUMI_HOME where the operator has chosen none."""
        return self.cache / "pulumi-home"

    @property
    def chosen_home(self) -> Path | None:
        """PULUMI_HOME that the operator has chosen."""
        chosen = self.environment.get("PULUMI_HOME")
        return Path(chosen) if chosen else None

    @property
    def usual_home(self) -> Path:
        """PULUMI_HOME as an official installation uses it."""
        return Path(self.environment.get("HOME") or Path.home()) / ".pulumi"

    @property
    def search_path(self) -> str:
        """PATH."""
        return self.environment.get("PATH", os.defpath)
