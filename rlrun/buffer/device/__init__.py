"""The replay on a CUDA device."""
