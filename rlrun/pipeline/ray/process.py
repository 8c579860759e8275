"""What every role's process does first."""

import logging
import sys
import warnings

import torch

from rlrun.optim.compute import keep_freed_memory


def prepare(name: str, *, threads: int) -> None:
    """Set up the process of the role ``name``."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    logging.getLogger().setLevel(logging.INFO)
    logging.captureWarnings(True)
    # Arrays of messages are read-only; what is made of them is copied before it is written.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    logging.getLogger(__name__).info("%s: Python %s", name, sys.version.split()[0])
