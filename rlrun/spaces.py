"""What a space says about its numbers: which are bounded, what is an image. Torch-free."""

import math
from typing import Any

import gymnasium as gym
import numpy as np

CNN_SIDE = 36  # pixels: what the three convolutions of Mnih et al. 2015 leave one of


def bounded(space: gym.spaces.Box) -> np.ndarray:
    """Return bool [A]: the numbers of a Box whose range float32 can hold."""
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = (np.asarray(x, np.float32).reshape(-1) for x in (space.low, space.high))
        finite: np.ndarray = np.isfinite(high - low)
    return finite


def image_size(space: gym.Space[Any]) -> bool:
    """Whether a Box is as large as a picture: two sides, or a flat row, of ``CNN_SIDE`` pixels."""
    shape = space.shape if isinstance(space, gym.spaces.Box) else None
    if not shape:
        return False
    if len(shape) == 1:
        return shape[0] >= CNN_SIDE**2
    return sorted(shape)[-2] >= CNN_SIDE


def image_scale(space: gym.Space[Any]) -> float:
    """Return what a network divides the numbers of ``space`` by: 255 for pixels of 0 to 255.

    It is the largest bound of a Box as large as a picture, where that is finite and above 1, and 1
    for all other spaces: their numbers are codes, counts or measurements. The dtype plays no part.
    """
    if not image_size(space):
        return 1.0
    assert isinstance(space, gym.spaces.Box)
    largest = float(max(abs(space.low.min()), abs(space.high.max())))
    return largest if math.isfinite(np.float32(largest)) and largest > 1 else 1.0
