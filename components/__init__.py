"""Turns a Release into Pulumi resources, one component a file, and decides nothing."""
