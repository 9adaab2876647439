"""The one error of a node's verb: its text is for the operator."""


class NodeTaskError(Exception):
    """Raised when a verb cannot do its work; says what was found, what must hold and the way out."""
