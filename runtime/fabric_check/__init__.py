"""What a node does for `fleet fabric check`: looks at its links, meets its peers, runs the collective."""
