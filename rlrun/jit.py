"""Optional numba: ``jit`` compiles a kernel at its first call and caches the result.

Without numba (or with RLRUN_NUMBA=0) ``jit`` returns the function unchanged, and callers that would
be slow as Python loops use a vectorised numpy version; the numbers are the same.
"""

import os
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

COMPILED = os.environ.get("RLRUN_NUMBA", "1") != "0"
if COMPILED:
    try:
        import numba
    except ImportError:
        COMPILED = False


def jit(function: F) -> F:
    """Compile ``function`` with numba (no fast math: sums keep their order), where installed."""
    return _compiled(function, "python")


def jit_ieee(function: F) -> F:
    """``jit`` with IEEE division: x / 0 is inf or NaN and raises nothing.

    A loop that must raise cannot be vectorised.
    """
    return _compiled(function, "numpy")


def _compiled(function: F, error_model: Literal["python", "numpy"]) -> F:
    if not COMPILED:
        return function
    try:
        compiled: Any = numba.njit(cache=True, nogil=True, error_model=error_model)(function)
    except RuntimeError:  # neither the package's nor the user's cache directory is writable
        compiled = numba.njit(nogil=True, error_model=error_model)(function)
    return cast(F, compiled)
