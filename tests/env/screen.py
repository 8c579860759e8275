"""An environment whose observation is an image that changes little."""

from typing import Any

import gymnasium as gym
import numpy as np

from tests.env.base import Env

SIDE = 36  # what nature_cnn needs at least


class Screen(Env):
    """A still pattern with a moving dot; the reward is 1 for the action the dot's row names."""

    def __init__(self, length: int = 11, noise: bool = False) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (SIDE, SIDE), np.uint8)
        self.action_space = gym.spaces.Discrete(2)
        self.length, self.noise = length, noise

    def begin(self) -> None:
        self.still = self.np_random.integers(0, 4, (SIDE, SIDE)).astype(np.uint8)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        reward = float(action == self.t % 2)
        self.t += 1
        return self._obs(), reward, self.t == self.length, False, {}

    def _obs(self) -> np.ndarray:
        if self.noise:
            return self.np_random.integers(0, 256, (SIDE, SIDE)).astype(np.uint8)
        seen = self.still.copy()
        seen[self.t % SIDE, self.t * 7 % SIDE] = 255
        return seen


class FloatScreen(Env):
    """Colours within [0, 1]."""

    observation_space = gym.spaces.Box(0, 1, (SIDE, SIDE, 3), np.float32)
    action_space = gym.spaces.Discrete(2)

    def _obs(self) -> Any:
        return self.np_random.random((SIDE, SIDE, 3), np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        last = bool(self.np_random.random() < 0.1)
        return self._obs(), 0.0, last, False, {}


class Beside(FloatScreen):
    """Colours beside a vector."""

    observation_space = gym.spaces.Dict(
        {"image": FloatScreen.observation_space, "vector": gym.spaces.Box(-1, 1, (3,))}
    )

    def _obs(self) -> Any:
        image = super()._obs()
        return {"image": image, "vector": image[0, 0]}


gym.register("test/Beside-v0", entry_point=Beside)
gym.register("test/Screen-v0", entry_point=Screen)
gym.register("test/FloatScreen-v0", entry_point=FloatScreen)
