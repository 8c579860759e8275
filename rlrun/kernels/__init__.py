"""Numpy kernels of small networks, faster than autograd on small ones."""
