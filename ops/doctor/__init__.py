"""`fleet doctor`: asks all nodes at once what is wrong with them, and says what cures it."""
