"""BLAS, which computes numpy's matrix products: its threads, its product for compiled code.

Products as small as those of acting are slower on several threads, which also occupy cores while
they wait.
"""

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np  # noqa: F401  whose BLAS must be loaded to be found
from threadpoolctl import ThreadpoolController

VARIABLE = "OPENBLAS_NUM_THREADS"  # read when a BLAS is loaded; the command line sets it to 1


@cache
def libraries() -> list[Any]:
    """Return the loaded BLAS libraries."""
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


def description() -> str:
    """Return name, version and kind of CPU of the loaded BLAS libraries; it decides last bits."""
    facts = (library.info() for library in libraries())
    words = (f"{x['internal_api']} {x['version']} {x.get('architecture', '')}" for x in facts)
    return ", ".join(sorted(word.strip() for word in words))


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


# With 64-bit sizes: numpy's wheels, OpenBLAS, MKL, Accelerate. cblas_sgemm: 32-bit sizes.
_SGEMM = (
    "scipy_cblas_sgemm64_", "cblas_sgemm64_", "cblas_sgemm_64", "cblas_sgemm$NEWLAPACK$ILP64",
    "cblas_sgemm",
)  # fmt: skip


@cache
def sgemm() -> int | None:
    """Return the address of the single-precision product of numpy's BLAS; None: not found.

    It may be called with 64-bit sizes, also where they are 32-bit ones: arguments on the stack take
    8 bytes each everywhere but on Apple's ARM.
    """
    products = import_module("numpy._core._multiarray_umath").__file__
    narrow = platform.system() == "Darwin" and platform.machine() == "arm64"
    try:
        library = ctypes.CDLL(products)  # finds symbols of its dependencies too
    except OSError:
        return None
    for name in _SGEMM[:-1] if narrow else _SGEMM:
        if (function := getattr(library, name, None)) is not None:
            return ctypes.cast(function, ctypes.c_void_p).value
    return None
