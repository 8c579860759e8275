"""Random walks with several kinds of state, for tests of saved environments. Torch-free: workers
import this module.
"""

import random
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.env.base import Env


class Walk(Env):
    """A random walk; ``hidden``: what it does beside."""

    def __init__(self, hidden: str = "none") -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Discrete(2)
        self.hidden, self.place = hidden, 0.0
        self.world: Any = [World()] if hidden in ("world", "count") else None
        self.total = 0.0  # over episodes

    def begin(self) -> None:
        self.place = float(self.np_random.normal())
        if self.world is not None:
            self.world = [World()]
        if self.hidden == "count":
            self.total += 1
            self.place += self.total

    def _obs(self) -> np.ndarray:
        return np.array([self.place, self.t])

    def step(self, action: Any) -> Any:
        noise = {
            "global": np.random.random,
            "random": random.random,
            "clock": time.perf_counter,
            "entropy": np.random.default_rng().random,
        }.get(self.hidden, self.np_random.normal)
        self.place += float(noise()) * (1 + int(action))
        self.t += 1
        if self.world is not None:
            self.world[0].height += self.place
            self.place += 0.1 * self.world[0].height
        if self.hidden == "class":
            type(self).shared += 1
            self.place += type(self).shared
        return self._obs(), self.place, self.t == 12, False, {}

    shared = 0


class Halving(Walk):
    """It changes the action that it gets."""

    def __init__(self, hidden: str = "none") -> None:
        super().__init__(hidden)
        self.action_space = spaces.Box(-4, 4, (1,), np.float32)

    def step(self, action: Any) -> Any:
        action *= 0.5
        return super().step(action[0] * 10)


class World:
    """An object in a list: the open episode is replayed."""

    def __init__(self) -> None:
        self.height = 0.0


gym.register("test/Walk-v0", entry_point=Walk)
gym.register("test/Halving-v0", entry_point=Halving)


class Own(Walk):
    """An environment with a state of its own, which its attributes do not show."""

    def __init__(self) -> None:
        super().__init__("world")

    def state_dict(self) -> dict[str, Any]:
        rng = self.np_random.bit_generator.state
        return {"place": self.place, "t": self.t, "height": self.world[0].height, "rng": rng}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place, self.t, self.world[0].height = state["place"], state["t"], state["height"]
        self.np_random.bit_generator.state = state["rng"]


gym.register("test/Own-v0", entry_point=Own)
