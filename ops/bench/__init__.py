"""`fleet bench`: measures a deployment as the sources measured theirs, and says when a figure is none."""
