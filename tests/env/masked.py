"""An environment that forbids actions, and raises when a forbidden one is taken."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.env.base import Env

ACTIONS, LENGTH = 4, 6


class Masked(Env):
    """Reward 1 for the allowed action with the highest number; what is shown says nothing of it.

    Episodes end after 6 steps, by turns terminated (with a mask of zeros) and truncated.
    """

    def __init__(self, *, where: str = "obs") -> None:
        self.where = where
        self.action_space = spaces.Discrete(ACTIONS)
        box = spaces.Box(0, 1, (2,), np.float32)
        mask = spaces.MultiBinary(ACTIONS)
        both = spaces.Dict({"action_mask": mask, "observation": box})
        self.observation_space = both if where == "obs" else box
        self.episode = 0

    def begin(self) -> None:
        self.episode += 1
        self._draw(ended=False)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.mask[action]:
            raise ValueError(f"action {action} is forbidden, allowed are {self.mask}")
        reward = float(action == np.flatnonzero(self.mask)[-1])
        self.t += 1
        ended, even = self.t == LENGTH, self.episode % 2 == 0
        self._draw(ended=ended and even)
        return self._obs(), reward, ended and even, ended and not even, self._info()

    def _draw(self, *, ended: bool) -> None:
        mask = (self.np_random.random(ACTIONS) < 0.5).astype(np.int8)
        mask[self.np_random.integers(ACTIONS)] = 1
        self.mask = np.zeros(ACTIONS, np.int8) if ended else mask

    def _obs(self) -> Any:
        box = np.ones(2, np.float32)
        return self._mask() | {"observation": box} if self.where == "obs" else box

    def _info(self) -> dict[str, Any]:
        return {} if self.where == "obs" else self._mask()

    def _mask(self) -> dict[str, Any]:
        return {"action_mask": self.mask.copy()}


gym.register("tests/Masked-v0", f"{__name__}:Masked")
