"""What a node is asked while a deployment is measured: its counters, its memory, its clocks."""
