"""Which actions an environment allows: the key ``action_mask`` of a Dict observation.

The mask [A] is 1 (or True) where an action may be taken. It stands in every row beside the rest of
the observation, is stored with it, and is read by exploration, by greedy choices, by targets and by
distributions over actions, never by a network. A mask without a single 1 (an ended episode's)
allows everything: nothing is chosen there that anybody uses. Torch-free.
"""

from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.tree import Tree

MASK = "action_mask"
FORBIDDEN = -1e8  # logit of such an action: probability 0, and 0 times its logarithm is 0, not NaN


def has_mask(space: gym.Space[Any]) -> bool:
    """Whether observations of ``space`` say which actions are allowed."""
    return isinstance(space, gym.spaces.Dict) and MASK in space.spaces


def unmasked(space: gym.Space[Any]) -> gym.Space[Any]:
    """``space`` without the mask: what a network reads."""
    if not isinstance(space, gym.spaces.Dict) or MASK not in space.spaces:
        return space
    return gym.spaces.Dict({k: s for k, s in space.spaces.items() if k != MASK})


def allowed_actions(obs: Tree) -> np.ndarray:
    """bool [*, A] of arrays that are observations of a space that ``has_mask``."""
    mask: np.ndarray = obs[MASK] != 0
    return mask | ~mask.any(-1, keepdims=True)


def without_forbidden(logits: np.ndarray, obs: Tree) -> np.ndarray:
    """Logits [*, A] that give actions forbidden by observations ``obs`` probability 0."""
    return np.where(allowed_actions(obs), logits, np.float32(FORBIDDEN))
