"""What is wrong with a node: looks at everything and changes nothing."""
