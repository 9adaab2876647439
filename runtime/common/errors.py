"""The one error of what node and controller share: its text is for the operator."""


class FilesError(Exception):
    """Raised when files are not what they must be; says which, what must hold and the way out."""
