"""The command line: one file per verb or pair of verbs. Only a run that starts imports torch."""

import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Import packages in this block without garbage collection, and exclude them from later ones.

    Imports make a million objects, none of them garbage. Scanning them took a sixth of the time
    that a run takes to begin.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def importing_torch() -> Iterator[None]:
    """Import torch in this block as in ``uncollected``, and take SIGINT at its end.

    Raised in torch's C++ code it could abort the process.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with uncollected():
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
