"""Threads of BLAS, which computes numpy's matrix products.

Products as small as those of acting are slower on more threads, which then wait by spinning on
cores that the learner or another run could use.
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
    """Return the BLAS libraries that are loaded."""
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread (or those of OPENBLAS_NUM_THREADS) within the block, for BLAS that is loaded."""
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
    """``one_thread`` for the processes that the block starts and the BLAS that it loads, too.

    What was loaded in the block (scipy's, by an environment) has as many threads afterwards as
    numpy's.
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
