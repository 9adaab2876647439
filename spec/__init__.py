"""Pure decisions: validates a deployment, renders every rank and returns a Release.

Nothing here imports Pulumi, opens a socket, reads a clock or starts a process. Files are read only by `spec.catalog`.
"""
