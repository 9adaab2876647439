"""`python -m ops`: the fleet command line."""

from ops.cli import run

run()
