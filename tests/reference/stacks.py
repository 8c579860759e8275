"""Frame stacking, frame by frame."""

from typing import Any

import numpy as np


def stack_at(frames: list[Any], first: list[bool], row: int, k: int) -> np.ndarray:
    """[k, *O]: the frame of ``row`` and the k - 1 before it, none older than its episode."""
    opens = max(r for r in range(row + 1) if first[r])
    return np.stack([np.asarray(frames[max(r, opens)]) for r in range(row - k + 1, row + 1)])
