"""Denormal numbers count as zero while rlrun computes, as in JAX and TensorFlow.

Moments of units that get no gradient decay until they are denormal, and a CPU of Intel's then takes
several times as long for a step of Adam. The mode is one of each thread, and numpy's and numba's
code obeys it too. A thread begins with the mode of the thread that starts it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_DENORMAL = np.float32(1e-40)


def flushes() -> bool:
    """Return whether this thread computes with zeros in place of denormal numbers."""
    return bool(_DENORMAL * np.float32(1) == 0)


@contextmanager
def flushed() -> Iterator[None]:
    """Flush denormal numbers in this thread, and in those that it starts, within the block.

    Without effect on a CPU that cannot.
    """
    before = flushes()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
