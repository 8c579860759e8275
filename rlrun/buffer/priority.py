"""What both prioritized samplers have in common."""

import numpy as np

from rlrun.buffer.jit import COMPILED, jit
from rlrun.errors import NumericError

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
