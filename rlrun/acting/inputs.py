"""A network's inputs as flat float32 vectors, in numpy."""

import math
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.nets.action_bounds import ActionBounds
from rlrun.nets.actor_critic import discrete_sizes
from rlrun.spaces import image_scale
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
            scale = image_scale(space)
            return x if scale == 1 else x / np.float32(scale)


def _one_hot(index: np.ndarray, size: int) -> np.ndarray:
    hot: np.ndarray = (index[:, None] == np.arange(size)).astype(np.float32)
    return hot


class PreviousInputs:
    """Previous actions and rewards: ``encode_previous`` of the networks, in numpy."""

    def __init__(
        self, space: gym.Space[Any], num_envs: int, *, bounds: ActionBounds | None = None
    ) -> None:
        """``bounds``: the unit of the network's real actions."""
        sizes = discrete_sizes(space)
        self.bounds = bounds
        self.size = (sum(sizes) or math.prod(space.shape or ())) + 1
        self.encoded = np.zeros((num_envs, self.size), np.float32)
        self.actions, self.rewards = self.encoded[:, :-1], self.encoded[:, -1]
        one_hot = np.split(self.actions, np.cumsum(sizes)[:-1], 1) if sizes else []
        self.one_hot = [(x, np.arange(n)) for x, n in zip(one_hot, sizes, strict=True)]

    def __call__(self, action: np.ndarray, reward: np.ndarray) -> np.ndarray:
        """Return float32 [E, K + 1]: actions [E, *A] (one-hot where discrete), rewards [E].

        The array is written anew by the next call.
        """
        if self.bounds is not None:
            action = self.bounds.to_unit_array(action)
        flat = action.reshape(len(action), -1)
        for i, (one_hot, choices) in enumerate(self.one_hot):
            np.equal(flat[:, i : i + 1], choices, out=one_hot)
        if not self.one_hot:
            self.actions[...] = flat
        self.rewards[...] = reward
        return self.encoded
