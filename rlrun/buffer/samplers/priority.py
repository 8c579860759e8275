"""What both prioritized samplers have in common."""

import numpy as np

from rlrun.errors import NumericError
from rlrun.jit import COMPILED, jit

LARGEST = float(np.finfo(np.float32).max)  # larger finite priorities are stored as this one
ALPHA_STEP = 0.01  # how far alpha may move before what depends on it is computed again


def finite_priorities(priority: np.ndarray) -> None:
    """Returns nothing; |delta| priorities (float [n]) that are finite and >= 0 pass.

    Raises: NumericError naming the first priority that is NaN, infinite or negative.
    """
    if COMPILED and first_bad(priority) < 0:
        return
    good = (priority >= 0) & (priority < np.inf)
    if not good.all():
        raise NumericError(
            f"priority = {priority[~good][0]}: priorities must be finite and >= 0; the loss has "
            "diverged; lower policy.lr or set policy.reward_clip"
        )


@jit
def first_bad(priority: np.ndarray) -> int:
    """Index of the first priority that is NaN, infinite or negative; -1: none."""
    for i in range(len(priority)):
        if not 0 <= priority[i] < np.inf:
            return i
    return -1


@jit
def raise_compiled(
    priority: np.ndarray, eps: float, slots: np.ndarray, raw: np.ndarray, mass: np.ndarray
) -> float:
    """Write p = priority + eps to ``raw`` (float32, at ``slots``) and ``mass``; the largest p.

    -1, with nothing written, when a priority is NaN, infinite or negative.
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


def raise_vectorised(
    priority: np.ndarray, eps: float, slots: np.ndarray, raw: np.ndarray, mass: np.ndarray
) -> float:
    """The same in numpy."""
    if not ((priority >= 0) & (priority < np.inf)).all():
        return -1.0
    p = np.minimum(priority.astype(np.float64) + eps, LARGEST)
    raw[slots] = mass[:] = p.astype(np.float32)
    return float(mass.max(initial=0.0))


raise_priorities = raise_compiled if COMPILED else raise_vectorised


@jit
def by_least_compiled(mass: np.ndarray) -> None:
    """Divide all by the smallest."""
    least = mass[0]
    for x in mass:
        least = min(least, x)
    for i in range(len(mass)):
        mass[i] /= least


def by_least_vectorised(mass: np.ndarray) -> None:
    """The same in numpy."""
    mass /= mass.min()


by_least = by_least_compiled if COMPILED else by_least_vectorised
