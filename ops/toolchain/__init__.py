"""The Pulumi engine and its plugins: found, downloaded or built, so that nobody has to install anything by hand.

`ensure_toolchain` is the entrance; `Toolchain` is what it returns.
"""

from ops.toolchain.ensuring import ensure_toolchain
from ops.toolchain.errors import ToolchainError
from ops.toolchain.surroundings import Platform, Surroundings
from ops.toolchain.toolchain import Toolchain, ToolchainPart

__all__ = ["Platform", "Surroundings", "Toolchain", "ToolchainError", "ToolchainPart", "ensure_toolchain"]
