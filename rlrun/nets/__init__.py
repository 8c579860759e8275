"""Torch networks: torsos, memories, heads, and the networks of every policy family."""
