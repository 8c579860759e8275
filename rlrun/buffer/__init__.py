"""Ring, windows, samplers: experience replay."""
