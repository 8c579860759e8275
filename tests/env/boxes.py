"""Small environments with real actions, registered under the test/ namespace."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.env.base import Env

LOW, HIGH = np.array([-1.0, 0.0, 5.0], np.float32), np.array([3.0, 0.5, 9.0], np.float32)
BEST = np.array([2.0, 0.1, 6.0], np.float32)


class Levers(Env):
    """Three levers of different ranges; -mean(share of the range off BEST, squared) per step.

    One step is an episode (``length`` 1); a longer one is truncated. Where the bounds are mixed up,
    or actions are not scaled to them, BEST is out of reach.
    """

    def __init__(self, length: int = 1) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Box(LOW, HIGH)
        self.length = length

    def _obs(self) -> np.ndarray:
        return np.array([1.0, self.t / self.length], np.float32)

    def step(self, action: np.ndarray) -> Any:
        assert self.action_space.contains(action), action
        self.t += 1
        off = (action - BEST) / (HIGH - LOW)
        done = self.t >= self.length
        alone = self.length == 1
        return self._obs(), -float(np.mean(off**2)), done and alone, done and not alone, {}


class Reach(Env):
    """A point in the plane, moved by at most 0.3 a step; -1 until it is within 0.15 of the goal."""

    def __init__(self, steps: int = 12) -> None:
        box = spaces.Box(-1, 1, (2,), np.float32)
        keys = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict({key: box for key in keys})
        self.action_space = spaces.Box(-0.3, 0.3, (2,), np.float32)
        self.steps = steps

    @staticmethod
    def compute_reward(achieved_goal: Any, desired_goal: Any, info: object) -> Any:
        near = Reach.compute_terminated(achieved_goal, desired_goal, info)
        return np.where(near, np.float32(0), np.float32(-1))

    @staticmethod
    def compute_terminated(achieved_goal: Any, desired_goal: Any, info: object) -> Any:
        return np.linalg.norm(achieved_goal - desired_goal, axis=-1) < 0.15

    def _obs(self) -> dict[str, np.ndarray]:
        at, goal = self.at.astype(np.float32), self.goal
        return {"observation": at, "achieved_goal": at.copy(), "desired_goal": goal.copy()}

    def begin(self) -> None:
        self.at = np.zeros(2)
        self.goal = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        while self.compute_terminated(self.at, self.goal, {}):
            self.goal = self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action: np.ndarray) -> Any:
        self.at = np.clip(self.at + action, -1, 1)
        self.t += 1
        obs = self._obs()
        there = bool(self.compute_terminated(obs["achieved_goal"], self.goal, {}))
        late = self.t >= self.steps and not there
        return obs, -1.0 + there, there, late, {"is_success": float(there)}


class Unit(Env):
    """The middle of the box pays 1, its ends 0; ``shape``: of the action; ten steps."""

    def __init__(self, low: float = -1, high: float = 1, shape: tuple[int, ...] = ()) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Box(low, high, tuple(shape), np.float32)
        self.low, self.high = low, high

    def _obs(self) -> np.ndarray:
        return np.zeros(2, np.float32)

    def step(self, action: np.ndarray) -> Any:
        assert self.action_space.contains(np.asarray(action)), action
        self.t += 1
        share = (np.asarray(action, np.float64) - self.low) / (self.high - self.low)
        reward = float(1 - 2 * np.abs(share - 0.5).mean())
        return self._obs(), reward, False, self.t >= 10, {}


for _name in ("Levers", "Reach", "Unit"):
    gym.register(f"test/{_name}-v0", f"{__name__}:{_name}", disable_env_checker=True)
