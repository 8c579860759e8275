"""The parts of a gradient step: Adam, target networks, CUDA graphs, precision and threads."""
