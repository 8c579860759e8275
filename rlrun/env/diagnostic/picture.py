"""Pictures of diagnostic environments, drawn with numpy: squares and bars, no text."""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlrun.tree import Tree

SQUARE, GAP, ROW = 24, 2, 16  # pixels of a square and between two; squares of a line
WHITE, GREY, DARK = (255, 255, 255), (224, 224, 224), (64, 64, 64)
BLUE, GREEN, RED = (31, 119, 180), (44, 160, 44), (214, 39, 40)

Color = tuple[int, int, int]


def canvas(rows: int, columns: int) -> np.ndarray:
    """Return a white picture, uint8 [H, W, 3], with room for squares and even sides."""
    step = SQUARE + GAP
    return np.full((rows * step + GAP, columns * step + GAP, 3), 255, np.uint8)


def fill(image: np.ndarray, row: int, column: int, color: Color, *, inset: int = 0) -> None:
    """Fill a square; ``inset``: pixels that are left at each of its sides."""
    step = SQUARE + GAP
    top, left = GAP + row * step + inset, GAP + column * step + inset
    size = SQUARE - 2 * inset
    image[top : top + size, left : left + size] = color


def observation_picture(obs: Tree, space: gym.Space[Any], share: float) -> np.ndarray:
    """Return an observation as squares, from white (lowest value) to blue (highest).

    Each part of a Dict or Tuple begins a line. The last line shows ``share``, the part of the
    episode that is over.
    """
    parts = list(_scaled_parts(obs, space))
    lines = [part[i : i + ROW] for part in parts for i in range(0, len(part), ROW)]
    image = canvas(len(lines) + 1, max(map(len, lines)))
    white, blue = np.array(WHITE), np.array(BLUE)
    for row, line in enumerate(lines):
        for column, value in enumerate(line):
            fill(image, row, column, GREY)
            red, green, own_blue = (white + (blue - white) * value).astype(int)
            fill(image, row, column, (red, green, own_blue), inset=1)
    width = image.shape[1] - 2 * GAP
    image[-SQUARE // 2 : -GAP, GAP : GAP + width] = GREY
    image[-SQUARE // 2 : -GAP, GAP : GAP + round(share * width)] = DARK
    return image


def _scaled_parts(obs: Tree, space: gym.Space[Any]) -> Iterator[np.ndarray]:
    """Yield the numbers of every part as shares of their range, [K] in [0, 1]."""
    match space:
        case spaces.Dict():
            for key, part in space.spaces.items():
                yield from _scaled_parts(obs[key], part)
        case spaces.Tuple():
            for own, part in zip(obs, space.spaces, strict=True):
                yield from _scaled_parts(own, part)
        case _:
            yield _scaled(obs, space)


def _scaled(x: np.ndarray, space: gym.Space[Any]) -> np.ndarray:
    """Return the numbers of a part as shares of their range, [K] in [0, 1]; Discrete as one-hot."""
    if isinstance(space, spaces.Discrete):
        symbols: np.ndarray = np.arange(space.n) == int(x) - space.start
        return symbols.astype(np.float64)
    flat = np.asarray(x, np.float64).ravel()
    low, high = np.full(flat.shape, -1.0), np.full(flat.shape, 1.0)
    if isinstance(space, spaces.Box):
        bounded = np.isfinite(space.low).ravel() & np.isfinite(space.high).ravel()
        low, high = (
            np.where(bounded, b.ravel(), c) for b, c in ((space.low, low), (space.high, high))
        )
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = space.start.ravel(), (space.start + space.nvec - 1).ravel()
    elif isinstance(space, spaces.MultiBinary):
        low = np.zeros(flat.shape)
    share: np.ndarray = np.clip((flat - low) / np.maximum(high - low, 1e-9), 0, 1)
    return share
