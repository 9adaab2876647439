"""The one error of this package."""


class ToolchainError(Exception):
    """Raised when the engine cannot be made ready; its text says what, why and the way out, in one paragraph."""
