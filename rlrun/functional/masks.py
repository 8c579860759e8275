"""Action masks: the key ``action_mask`` of a Dict observation.

The mask [A] is 1 (or True) for allowed actions. It is part of every observation and stored with it.
Exploration, greedy actions, targets and action distributions read it; networks do not. A mask
without any 1 (that of an ended episode) allows all actions. Does not import torch: the functions
accept numpy arrays and tensors.
"""

from typing import Any

import gymnasium as gym

from rlrun.spaces import Tree

MASK = "action_mask"
FORBIDDEN = -1e8  # logit of such an action: probability 0, and 0 times its logarithm is 0, not NaN


def has_mask(space: gym.Space[Any] | None) -> bool:
    """Return whether observations of ``space`` have an action mask."""
    return isinstance(space, gym.spaces.Dict) and MASK in space.spaces


def mask_path(space: gym.Space[Any]) -> tuple[str, ...] | None:
    """Return the keys that lead to the mask, or an agent's, in rows of ``space``; None: no mask."""
    if has_mask(space):
        return (MASK,)
    parts = space.spaces if isinstance(space, gym.spaces.Dict) else {}
    inner = next((key for key in ("agents", "observation") if has_mask(parts.get(key))), None)
    return None if inner is None else (inner, MASK)


def unmasked(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return ``space`` without the mask: the observation space of a network."""
    if not isinstance(space, gym.spaces.Dict) or MASK not in space.spaces:
        return space
    return gym.spaces.Dict({k: s for k, s in space.spaces.items() if k != MASK})


def allowed_actions(obs: Tree) -> Any:
    """Return bool [*, A], array or tensor: the allowed actions of observations with a mask."""
    mask = obs[MASK] != 0
    return mask | ~mask.any(-1, keepdims=True)


def allowed_or_none(obs: Tree) -> Any:
    """Return ``allowed_actions``, or None if observations have no mask."""
    return allowed_actions(obs) if isinstance(obs, dict) and MASK in obs else None
