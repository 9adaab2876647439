"""Finds a node's fabric each time a rank starts: interface, RDMA device, port and GID index of every rail."""
