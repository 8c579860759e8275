"""Start method of the collector's process. Does not import torch.

The process needs a second or two to import torch. ``start_forkserver`` begins that before the main
process imports torch itself.
"""

import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP]


def start_forkserver() -> None:
    """Start the process from which collectors are forked. It imports torch and rlrun.

    A fork of the main process would copy locks that torch's threads may hold. The new process must
    have one thread, which holds as long as ``import torch`` starts none.
    """
    from multiprocessing import forkserver

    multiprocessing.set_forkserver_preload(["rlrun.run.build", "rlrun.pipeline.overlapped"])
    with signals_blocked():
        forkserver.ensure_running()


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block signals in this process and in those started meanwhile, until they ignore them."""
    resource_tracker.ensure_running()  # starting it would let signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
