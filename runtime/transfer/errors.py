"""What can go wrong in a transfer, apart by whose fault it is."""


class TransferError(Exception):
    """Raised when this node cannot do its part; the text is for the operator."""


class PeerError(Exception):
    """Raised when the other end of a connection is gone, silent, or not who it must be."""
