"""Moves files from node to node: the part of a transfer that runs on the nodes."""
