"""Errors of the command line: their text is all that an operator sees."""


class OperationError(Exception):
    """Raised when a verb or a resource's command cannot do its work; says what, why and the way out."""
