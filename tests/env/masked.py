"""An environment that forbids actions, and raises when a forbidden one is taken."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

ACTIONS, LENGTH = 4, 6


class Masked(gym.Env[Any, Any]):
    """Reward 1 for the allowed action with the highest number; what is shown says nothing of it.

    Episodes end after 6 steps, by turns terminated (with a mask of zeros) and truncated.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, *, where: str = "obs") -> None:
        self.where = where
        self.action_space = spaces.Discrete(ACTIONS)
        box = spaces.Box(0, 1, (2,), np.float32)
        mask = spaces.MultiBinary(ACTIONS)
        both = spaces.Dict({"action_mask": mask, "observation": box})
        self.observation_space = both if where == "obs" else box
        self.episode = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.episode = 0, self.episode + 1
        return self._seen(ended=False)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.mask[action]:
            raise ValueError(f"action {action} is forbidden, allowed are {self.mask}")
        reward = float(action == np.flatnonzero(self.mask)[-1])
        self.t += 1
        ended = self.t == LENGTH
        obs, info = self._seen(ended=ended and self.episode % 2 == 0)
        return obs, reward, ended and self.episode % 2 == 0, ended and self.episode % 2 == 1, info

    def _seen(self, *, ended: bool) -> tuple[Any, dict[str, Any]]:
        mask = (self.np_random.random(ACTIONS) < 0.5).astype(np.int8)
        mask[self.np_random.integers(ACTIONS)] = 1
        self.mask = np.zeros(ACTIONS, np.int8) if ended else mask
        box = np.ones(2, np.float32)
        if self.where == "obs":
            return {"action_mask": self.mask.copy(), "observation": box}, {}
        return box, {"action_mask": self.mask.copy()}


def register() -> None:
    """Make the id ``tests/Masked-v0`` known."""
    if "tests/Masked-v0" not in gym.registry:
        gym.register("tests/Masked-v0", "tests.env.masked:Masked")


register()
