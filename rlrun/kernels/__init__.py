"""Numpy implementations of updates of small networks, faster than autograd."""
