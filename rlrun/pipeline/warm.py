"""How the collector's process starts, and its head start. Torch-free.

Such a process imports torch, which takes a second or two. ``warm`` lets that begin before the main
process does the same.
"""

import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

SIGNALS = [getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, n)]


def start_method() -> str:
    """Not as a fork of this process, whose threads (torch) may hold locks."""
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def warm() -> None:
    """Start the process that collectors' processes are forked from; it imports what they need.

    It has one thread as long as ``import torch`` starts none.
    """
    if start_method() != "forkserver":
        return
    from multiprocessing import forkserver

    multiprocessing.set_forkserver_preload(["rlrun.build.pipeline"])
    with signals_held():
        forkserver.ensure_running()


@contextmanager
def signals_held() -> Iterator[None]:
    """What is started meanwhile hears no signal until it is ready to ignore it (importing torch
    takes seconds)."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # starting it would let signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
