"""Observations as flat float32 vectors, in numpy."""

from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.types import Tree


def flatten(space: gym.Space[Any], obs: Tree) -> np.ndarray:
    """Return float32 [E, flat_size] of observations [E, ...]; ``torso.flatten`` in numpy."""
    match space:
        case gym.spaces.Discrete():
            return _one_hot(obs - space.start, int(space.n))
        case gym.spaces.MultiDiscrete():
            index = (obs - space.start).reshape(len(obs), -1)
            sizes = space.nvec.reshape(-1)
            return np.concatenate([_one_hot(index[:, i], int(n)) for i, n in enumerate(sizes)], 1)
        case gym.spaces.Dict():
            return np.concatenate([flatten(s, obs[k]) for k, s in space.spaces.items()], 1)
        case gym.spaces.Tuple():
            return np.concatenate(
                [flatten(s, o) for s, o in zip(space.spaces, obs, strict=True)], 1
            )
        case _:
            x: np.ndarray = obs.reshape(len(obs), -1).astype(np.float32, copy=False)
            if obs.dtype == np.uint8:
                x /= np.float32(255)  # astype made a copy
            return x


def _one_hot(index: np.ndarray, size: int) -> np.ndarray:
    hot: np.ndarray = (index[:, None] == np.arange(size)).astype(np.float32)
    return hot
