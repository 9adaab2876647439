"""Images on this node: built, compared, handed on by their missing layers, kept to a number."""
