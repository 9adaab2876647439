"""The virtual fabric: nodes of a cluster as containers on this machine."""
