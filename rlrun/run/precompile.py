"""Kernels of the update compiled in a second process, while the run compiles those of its rows.

numba compiles one function at a time in a process. A first run needs some forty, about half of them
for its update.
"""

import multiprocessing
import os
import signal
import sys
import warnings
from typing import Any

from rlrun.buffer import kernels
from rlrun.buffer.replay import Replay
from rlrun.buffer.rollout import Rollout
from rlrun.jit import is_kept
from rlrun.pipeline.parts import Parts
from rlrun.run.build import zero_chunk
from rlrun.schema import Config
from rlrun.types import Sample

SECONDS = 60  # after which the process is ended
_ROWS = 4  # of a rollout, and beyond a window


def compile_update(config: Config, parts: Parts) -> None:
    """Start a process that learns from zeros, unless the update's kernel was compiled before.

    numba keeps what it compiles. It has no other effect.
    """
    policy, buffer = parts.policy, parts.buffer
    function = getattr(getattr(policy, "kernel", None), "function", None)
    shared = config.buffer.mmap is not None or not isinstance(buffer, Replay | Rollout)
    alone = (os.cpu_count() or 1) < 2 or sys.platform != "linux"  # others' libraries forbid forks
    if function is None or shared or alone or is_kept(function):
        return
    arguments = policy, buffer, config.learner.batch_size
    with warnings.catch_warnings():  # a lock that a thread holds stays locked, for ``SECONDS``
        warnings.simplefilter("ignore", DeprecationWarning)
        process: Any = multiprocessing.get_context("fork").Process
        process(target=_update, args=arguments, daemon=True).start()


def _update(policy: Any, buffer: Replay | Rollout, batch: int) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)
    for stream in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # above all the lock of the run directory
    for name, function in [*vars(kernels).items()]:  # the run's own process compiles these
        setattr(kernels, name, getattr(function, "py_func", function))
    policy.learn(_zeros(buffer, batch))


def _zeros(buffer: Replay | Rollout, batch: int) -> Sample:
    """Return a sample of rows that hold zeros."""
    if isinstance(buffer, Rollout):
        buffer.steps["valid"][:] = True
        buffer.filled = min(_ROWS, buffer.rows)
        return buffer.take(0)
    layout = buffer.layout
    buffer.add(zero_chunk(layout.row, layout.columns, buffer.window.rows + _ROWS))
    return buffer.sample(batch, 0)
