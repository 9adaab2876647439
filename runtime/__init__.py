"""What runs on the nodes and inside the containers: Python 3.10 to 3.13, standard library only."""
