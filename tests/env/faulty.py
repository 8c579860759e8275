"""Environments that break the contract on demand, registered under the test/ namespace.

``bad_seed``: only the environment that was reset with it misbehaves, at its step ``at``.
"""

import os
import signal
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.env.base import Env, Vector


def spoil(fault: str, obs: Any) -> tuple[Any, Any]:
    """The observation and reward of a breach."""
    if fault == "raise":
        raise ZeroDivisionError("division by zero in physics")
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "exit":
        sys.exit(7)
    if fault == "base":
        raise Unforeseen("not an Exception")
    if fault == "hang":
        time.sleep(60)
    if fault == "nan":
        obs = obs.copy()
        obs[..., 1] = np.nan
    if fault == "inf":
        obs = obs + np.float32(np.inf)
    if fault == "shape":
        obs = obs[..., :2]
    if fault == "scalar":
        obs = np.float32(0.0)
    if fault == "dtype":
        obs = obs.astype(np.float64)
    if fault == "list":
        obs = obs.tolist()
    if fault == "interrupt":
        raise KeyboardInterrupt
    if fault == "ctrl_c":  # what a terminal does
        signal.raise_signal(signal.SIGINT)
    rewards = {"nan_reward": np.nan, "array_reward": np.ones(2), "no_reward": None}
    rewards |= {"huge_reward": 1e39, "long_reward": -(10**5000), "text_reward": "1"}
    return obs, rewards.get(fault, 1.0)


class Unforeseen(BaseException):
    """What ``except Exception`` does not catch."""


class Faulty(gym.Env[Any, Any]):
    def __init__(
        self, fault: str = "none", bad_seed: int | None = 1, at: int = 3, length: int = 1000
    ) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.fault, self.bad_seed, self.at, self.length = fault, bad_seed, at, length
        self.count, self.mine = 0, None

    def _answer(self) -> tuple[Any, Any]:
        obs = np.full(3, self.count, np.float32)
        bad = self.bad_seed in (None, self.mine) and self.count == self.at
        return spoil(self.fault if bad else "none", obs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.count = 0 if seed is not None else self.count + 1
        self.start = self.count
        self.mine = self.mine if seed is None else seed
        return self._answer()[0], {}

    def step(self, action: Any) -> Any:
        self.count += 1
        over = self.count - self.start >= self.length
        obs, reward = self._answer()
        bad = self.mine == self.bad_seed and self.count == self.at
        if bad and self.fault == "four":
            return obs, reward, over, {}
        if bad and self.fault == "flag":
            return obs, reward, "yes", over, {}
        return obs, reward, over, over, {"odd": self.count % 2, "name": "x"}

    def close(self) -> None:
        if self.fault == "close":
            raise RuntimeError("the window is gone")


class FaultyVector(Vector):
    def __init__(self, num_envs: int, fault: str = "none", bad_seed: int = 1, at: int = 3) -> None:
        obs = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        super().__init__(num_envs, obs, spaces.Discrete(2))
        self.fault, self.column, self.at = fault, bad_seed, at

    def _obs(self) -> tuple[Any, Any]:
        obs = np.full((self.num_envs, 3), self.count, np.float32)
        reward = np.ones(self.num_envs)
        if self.count == self.at:
            row, bad_reward = spoil(self.fault, obs[self.column])
            if self.fault in ("nan", "inf"):
                obs[self.column] = row
            elif self.fault in ("nan_reward", "huge_reward"):
                reward[self.column] = bad_reward
            elif self.fault == "reward_list":
                reward = reward.tolist()
            elif self.fault != "none":
                obs, _ = spoil(self.fault, obs)
        return obs, reward

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.count = 0
        return self._obs()[0], {}

    def step(self, actions: Any) -> Any:
        self.count += 1
        obs, reward = self._obs()
        flags = np.zeros(self.num_envs - (self.fault == "flag_shape"), bool)
        return obs, reward, flags, flags.copy(), {}


class Undeclared(FaultyVector):
    metadata = {"render_modes": []}  # noqa: RUF012


class Nested(Env):
    """Dict and tuple observations of several dtypes; 4 steps per episode."""

    def __init__(self, fault: str = "none") -> None:
        image = spaces.Box(0, 255, (2, 2, 1), np.uint8)
        pair = spaces.Tuple((spaces.Discrete(5, start=1), spaces.Box(-1, 1, (2,), np.float64)))
        self.observation_space = spaces.Dict({"image": image, "pair": pair})
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.fault = fault

    def _obs(self) -> Any:
        image = np.full((2, 2, 1), self.t, np.uint8)
        pair = (1 + self.t, np.full(2, self.t / 8))
        if self.fault == "key" and self.t == 2:
            return {"image": image}
        if self.fault == "range" and self.t == 2:
            pair = (6, pair[1])
        if self.fault == "number" and self.t == 2:
            pair = (pair[0], np.full(2, 1.5))
        if self.fault == "nan" and self.t == 2:
            pair = (1, np.full(2, np.nan))
        return {"image": image, "pair": pair}

    def step(self, action: Any) -> Any:
        assert action.shape == (2,)
        self.t += 1
        return self._obs(), float(action[0]), self.t == 4, False, {}


class Words(Nested):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({"text": spaces.Text(4)})


class Mixed(Nested):
    """One part that rows can hold, one that they cannot."""

    def __init__(self) -> None:
        super().__init__()
        image = self.observation_space["image"]
        self.observation_space = spaces.Dict({"image": image, "text": spaces.Text(4)})

    def _obs(self) -> Any:
        return {"image": np.zeros((2, 2, 1), np.uint8), "text": "go"}


class Boxes(Nested):
    """Dict observations of boxes only: frames that can be stacked."""

    def __init__(self) -> None:
        super().__init__()
        image, speed = spaces.Box(0, 255, (4, 4), np.uint8), spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = spaces.Dict({"image": image, "speed": speed})
        self.action_space = spaces.Discrete(2)

    def _obs(self) -> Any:
        return {"image": np.full((4, 4), self.t, np.uint8), "speed": np.full(2, 0.5, np.float32)}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._obs(), 1.0, self.t == 4, False, {}


class Images(Boxes):
    """Images of 84 x 84 pixels, without or with a last axis of three colours."""

    def __init__(self, colours: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (84, 84, *colours), np.uint8)

    def _obs(self) -> Any:
        return np.full(self.observation_space.shape, self.t, np.uint8)


class Colour(Images):
    def __init__(self) -> None:
        super().__init__((3,))


for _name in ("Faulty", "Nested", "Words", "Mixed", "Boxes", "Images", "Colour"):
    gym.register(f"test/{_name}-v0", f"{__name__}:{_name}")
for _name in ("FaultyVector", "Undeclared"):
    gym.register(f"test/{_name}-v0", f"{__name__}:Faulty", vector_entry_point=f"{__name__}:{_name}")
gym.register("test/NoPackage-v0", "not_installed_anywhere:Env")
