"""The `fleet` command line: every verb besides preview and up."""
