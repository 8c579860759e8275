"""The command line: one file per verb or pair of verbs. Only a run that starts imports torch."""

import gc
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
