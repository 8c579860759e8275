"""Set-up of the process of a role."""

import logging
import os
import sys
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import torch

from rlrun.pipeline.ray.messages import RoleLog
from rlrun.policy.compute import keep_freed_memory


def packed(make: Callable[..., Any]) -> bytes:
    """A function for the constructor of a role: short, as Ray keeps only short ones for a restart.

    Spaces of images are long arrays of few values.
    """
    from ray import cloudpickle

    content: bytes = cloudpickle.dumps(make)  # type: ignore[no-untyped-call]
    return zlib.compress(content, 1)


def unpacked(make: bytes) -> Callable[..., Any]:
    """The inverse of ``packed``."""
    from ray import cloudpickle

    function: Callable[..., Any] = cloudpickle.loads(zlib.decompress(make))
    return function


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


def replaced() -> bool:
    """Return whether this process stands in for one of the same Ray actor that has ended."""
    import ray

    if not ray.is_initialized():  # a role outside of Ray
        return False
    context = ray.get_runtime_context()
    return context.get_actor_id() is not None and context.was_current_actor_reconstructed
