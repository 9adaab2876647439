"""The first process of every rank: ranks of a group start together, end together, and leave the host alive."""
