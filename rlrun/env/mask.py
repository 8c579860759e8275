"""``info["action_mask"]`` as a part of the observation, where policies look for it."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlrun.functional.masks import MASK


class MaskFromInfo(gym.Wrapper[Any, Any, Any, Any]):
    """Observations {observation, action_mask}; Dict observations get the key beside their own.

    The mask is int8 [A], 1 where an action is allowed. ``reset`` and ``step`` of the environment
    must both give it.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        """Raises: ValueError when the actions are not Discrete."""
        super().__init__(env)
        action, obs = env.action_space, env.observation_space
        if not isinstance(action, spaces.Discrete):
            raise ValueError(f"a mask needs Discrete actions, the environment has {action}")
        self.count = int(action.n)
        self.beside = isinstance(obs, spaces.Dict)
        parts = dict(obs.spaces) if isinstance(obs, spaces.Dict) else {"observation": obs}
        self.observation_space = spaces.Dict({**parts, MASK: spaces.MultiBinary(self.count)})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._joined(obs, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._joined(obs, info), reward, terminated, truncated, info

    def _joined(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        if MASK not in info:
            raise ValueError(f"info has no {MASK}; reset and step must both give it")
        mask = np.asarray(info[MASK]).astype(np.int8)
        if mask.shape != (self.count,):
            raise ValueError(f"info[{MASK!r}] is of shape {mask.shape}, not ({self.count},)")
        return {**(obs if self.beside else {"observation": obs}), MASK: mask}
