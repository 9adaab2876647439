"""`fleet fabric check`: is the network between nodes what a deployment needs, before it serves."""
