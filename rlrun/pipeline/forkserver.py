"""Start of the collector's process. Torch-free.

Such a process imports torch, which takes a second or two. ``start_forkserver`` begins that before
the main process imports torch itself.
"""

import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP]


def start_method() -> str:
    """``forkserver`` or ``spawn``; a fork would copy locks that torch's threads may hold."""
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def start_forkserver() -> None:
    """Start the process that collectors' processes are forked from; it imports torch and rlrun.

    It has one thread as long as ``import torch`` starts none.
    """
    if start_method() != "forkserver":
        return
    from multiprocessing import forkserver

    multiprocessing.set_forkserver_preload(["rlrun.run.build"])
    with signals_blocked():
        forkserver.ensure_running()


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block signals, also in processes started meanwhile until these ignore them themselves."""
    resource_tracker.ensure_running()  # starting it would let signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
