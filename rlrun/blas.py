"""Number of threads of BLAS, which computes numpy's matrix products.

Products as small as those of acting are slower on several threads, which also occupy cores while
they wait.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np  # noqa: F401  whose BLAS must be loaded to be found
from threadpoolctl import ThreadpoolController

VARIABLE = "OPENBLAS_NUM_THREADS"  # read when a BLAS is loaded; the command line sets it to 1


@cache
def libraries() -> list[Any]:
    """Return the loaded BLAS libraries."""
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit loaded BLAS libraries to one thread (or OPENBLAS_NUM_THREADS) within the block."""
    text = os.environ.get(VARIABLE, "")
    count = int(text) if text.isdecimal() and int(text) else 1
    before = [(library, library.get_num_threads()) for library in libraries()]
    try:
        for library, _ in before:
            library.set_num_threads(count)
        yield
    finally:
        for library, threads in before:
            library.set_num_threads(threads)


@contextmanager
def one_thread_of_run() -> Iterator[None]:
    """Apply ``one_thread`` also to processes started, and BLAS loaded, within the block.

    A BLAS loaded in the block (scipy's, by an environment) gets numpy's number of threads
    afterwards.
    """
    libraries.cache_clear()
    before = {library.filepath: library.get_num_threads() for library in libraries()}
    typed = VARIABLE in os.environ
    os.environ.setdefault(VARIABLE, "1")
    try:
        with one_thread():
            yield
    finally:
        if not typed:
            os.environ.pop(VARIABLE, None)
            libraries.cache_clear()
            for library in libraries():
                if library.filepath not in before:
                    library.set_num_threads(max(before.values(), default=1))
