"""What every role's process does first."""

import logging
import os
import sys
import warnings

import torch

from rlrun.optim.compute import keep_freed_memory
from rlrun.pipeline.ray.messages import RoleLog


def prepare(name: str, *, threads: int) -> RoleLog:
    """Set up the process of the role ``name``; return what keeps its log."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    logging.getLogger().setLevel(logging.INFO)
    logging.captureWarnings(True)
    # Arrays of messages are read-only; what is made of them is copied before it is written.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    log = RoleLog()
    place = os.uname().nodename if hasattr(os, "uname") else "this machine"
    text = "%s: process %d on %s, Python %s, torch %s, %d thread(s)"
    logging.getLogger(__name__).info(
        text, name, os.getpid(), place, sys.version.split()[0], torch.__version__, threads
    )
    return log
