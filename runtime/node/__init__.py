"""What a controller asks a node to do: one verb a module, a JSON request in, a JSON answer out."""
