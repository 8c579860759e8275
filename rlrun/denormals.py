"""Flushing of denormal numbers to zero while rlrun computes, as in JAX and TensorFlow.

Adam's moments of units without gradient decay until they are denormal, and a step then takes
several times as long on Intel CPUs. The mode belongs to a thread and applies to numpy's and numba's
code. A new thread inherits the mode of the thread that starts it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_DENORMAL = np.float32(1e-40)


def flushes() -> bool:
    """Return whether this thread treats denormal numbers as zero."""
    return bool(_DENORMAL * np.float32(1) == 0)


@contextmanager
def flushed() -> Iterator[None]:
    """Flush denormal numbers within the block, in this thread and in those it starts.

    Has no effect on CPUs without this mode.
    """
    before = flushes()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
