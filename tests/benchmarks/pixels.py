"""Frames like those of an old video game: a still field, a ball and two bars that move."""

from typing import Any

import gymnasium as gym
import numpy as np

SIDE = 84


class Pixels(gym.Env[np.ndarray, int]):
    """Observation uint8 [84, 84]; an episode is ``length`` steps; action 1 moves a bar."""

    def __init__(self, length: int = 400) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (SIDE, SIDE), np.uint8)
        self.action_space = gym.spaces.Discrete(2)
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.t, self.bar = 0, 40
        self.field = np.full((SIDE, SIDE), 87, np.uint8)
        self.field[:14] = self.np_random.integers(60, 200, (14, SIDE), np.uint8)  # a score line
        self.ball = self.np_random.integers(20, 60, 2)
        self.speed = self.np_random.choice([-2, -1, 1, 2], 2)
        return self._look(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.t += 1
        self.bar = (self.bar + (3 if action else -3)) % 70
        self.ball = self.ball + self.speed
        self.speed = np.where((self.ball < 16) | (self.ball > 80), -self.speed, self.speed)
        return self._look(), float(action), False, self.t >= self.length, {}

    def _look(self) -> np.ndarray:
        frame = self.field.copy()
        y, x = np.clip(self.ball, 0, SIDE - 3)
        frame[y : y + 2, x : x + 2] = 236
        frame[14 + self.bar : 24 + self.bar, 8:10] = 147
        frame[30:40, 74:76] = 92
        return frame


gym.register("test/Pixels-v0", entry_point="tests.benchmarks.pixels:Pixels")
