"""The one exception of lab/."""


class LabError(Exception):
    """Something that the operator has to know: what failed, why, and the way out."""

    def __init__(self, what: str, why: str, way_out: str) -> None:
        """Writes the message.

        Args:
            what: what was being done.
            why: the cause, as far as it is known.
            way_out: what the operator can do about it.
        """
        super().__init__(f"{what}: {why}\n{way_out}")
