"""What the parts of runtime/ share."""
