"""The one error of the image build: its text is for whoever reads the build's log."""


class BuildError(Exception):
    """Raised when a step cannot be applied; says which step and file, what was found, what must hold and the way out.

    Attributes:
        kind: which rule was broken, for programs.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
