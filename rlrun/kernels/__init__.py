"""Numpy kernels of feed-forward networks, faster than autograd on small ones."""
