"""Checks and kernels for priorities, shared by the prioritized samplers."""

import numpy as np

from rlrun.errors import NumericError
from rlrun.jit import COMPILED, jit

LARGEST = float(np.finfo(np.float32).max)  # larger finite priorities are clipped to this
ALPHA_STEP = 0.01  # change of alpha after which p^alpha is recomputed


def finite_priorities(priority: np.ndarray) -> None:
    """Raise NumericError naming the first of |delta| (float [n]) that is NaN, inf or negative."""
    if COMPILED and first_bad(priority) < 0:
        return
    good = (priority >= 0) & (priority < np.inf)
    if not good.all():
        raise NumericError(
            f"priority = {priority[~good][0]}: the loss has diverged; finite numbers >= 0 are "
            "allowed; lower policy.lr or set policy.reward_clip"
        )


@jit
def first_bad(priority: np.ndarray) -> int:
    """Index of the first priority that is NaN, infinite or negative; -1: none."""
    for i in range(len(priority)):
        if not 0 <= priority[i] < np.inf:
            return i
    return -1


@jit
def store_priorities_compiled(
    priority: np.ndarray, eps: float, slots: np.ndarray, raw: np.ndarray, mass: np.ndarray
) -> float:
    """Write p = priority + eps to ``raw`` (float32, at ``slots``) and to ``mass``.

    Returns the largest p, or -1 with nothing written when a priority is NaN, infinite or negative.
    """
    for i in range(len(priority)):
        if not 0 <= priority[i] < np.inf:
            return -1.0
    largest = 0.0
    for i in range(len(priority)):
        p = np.float32(min(np.float64(priority[i]) + eps, LARGEST))
        raw[slots[i]] = p
        mass[i] = p
        largest = max(largest, mass[i])
    return largest


def store_priorities_vectorised(
    priority: np.ndarray, eps: float, slots: np.ndarray, raw: np.ndarray, mass: np.ndarray
) -> float:
    """Twin in numpy."""
    if not ((priority >= 0) & (priority < np.inf)).all():
        return -1.0
    p = np.minimum(priority.astype(np.float64) + eps, LARGEST)
    raw[slots] = mass[:] = p.astype(np.float32)
    return float(mass.max(initial=0.0))


store_priorities = store_priorities_compiled if COMPILED else store_priorities_vectorised


@jit
def divide_by_min_compiled(mass: np.ndarray) -> None:
    """Divide in place by the minimum."""
    smallest = mass[0]
    for x in mass:
        smallest = min(smallest, x)
    for i in range(len(mass)):
        mass[i] /= smallest


def divide_by_min_vectorised(mass: np.ndarray) -> None:
    """Twin in numpy."""
    mass /= mass.min()


divide_by_min = divide_by_min_compiled if COMPILED else divide_by_min_vectorised
