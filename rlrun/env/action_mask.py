"""Wrapper that adds ``info["action_mask"]`` to the observation, where policies read it."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlrun.env.contract import ContractViolation
from rlrun.functional.masks import MASK


class ActionMaskObservation(gym.Wrapper[Any, Any, Any, Any]):
    """Observations {observation, action_mask}; Dict observations keep their keys and get one more.

    The mask is int8 [A], 1 where an action is allowed. Both ``reset`` and ``step`` of the wrapped
    environment must return it in ``info``.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        """Wrap ``env``. Raises: ValueError unless its actions are Discrete."""
        super().__init__(env)
        action, obs = env.action_space, env.observation_space
        if not isinstance(action, spaces.Discrete):
            raise ValueError(f"a mask needs Discrete actions, the environment has {action}")
        self.num_actions = int(action.n)
        self.dict_obs = isinstance(obs, spaces.Dict)
        parts = dict(obs.spaces) if isinstance(obs, spaces.Dict) else {"observation": obs}
        self.observation_space = spaces.Dict({**parts, MASK: spaces.MultiBinary(self.num_actions)})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(obs, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(obs, info), reward, terminated, truncated, info

    def _with_mask(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        if MASK not in info:
            raise ContractViolation(f"info has no {MASK}; reset and step must both return it")
        mask = np.asarray(info[MASK])
        if mask.shape != (self.num_actions,) or mask.dtype.kind not in "biuf":
            raise ContractViolation(
                f"info[{MASK!r}] is {mask.dtype} {mask.shape}; allowed are {self.num_actions} "
                "numbers, 1 where an action is allowed"
            )
        mask = (mask != 0).astype(np.int8)
        return {**(obs if self.dict_obs else {"observation": obs}), MASK: mask}
