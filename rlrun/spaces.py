"""What a space says about its numbers: which are bounded, what is an image. Torch-free."""

import math
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

Path = tuple[Any, ...]  # keys and indices from the root of an observation
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


def is_image(space: gym.Space[Any]) -> bool:
    """Whether convolutions read ``space``: a Box of three dimensions, as large as a picture."""
    return image_size(space) and len(space.shape or ()) == 3


def leaf_spaces(space: gym.Space[Any], path: Path = ()) -> Iterator[tuple[Path, gym.Space[Any]]]:
    """Yield (path, space) of the parts of Dicts and Tuples, in the order of the tree."""
    match space:
        case gym.spaces.Dict():
            parts: Any = space.spaces.items()
        case gym.spaces.Tuple():
            parts = enumerate(space.spaces)
        case _:
            yield path, space
            return
    for key, part in parts:
        yield from leaf_spaces(part, (*path, key))


def leaf_of(tree: Any, path: Path) -> Any:
    """Return the part of an observation that ``path`` leads to."""
    for key in path:
        tree = tree[key]
    return tree
