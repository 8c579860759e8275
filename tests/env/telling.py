"""Environments that say what they were told, and infos of all kinds. Torch-free."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.env.base import Env, Vector

SPACES = {
    "box": spaces.Box(np.array([-2, 0], np.float32), np.array([2, 5], np.float32)),
    "box64": spaces.Box(-1, 1, (2,), np.float64),
    "whole": spaces.Box(0, 255, (2,), np.uint8),
    "multi": spaces.MultiDiscrete([3, 4], start=[1, -1]),
    "short": spaces.MultiDiscrete([3, 4], dtype=np.int32, start=[1, -1]),
    "binary": spaces.MultiBinary(2),
    "discrete": spaces.Discrete(3, start=-1),
}


class Echo(Env):
    """Observes the action it was told and, in the last place, whether its dtype was right."""

    def __init__(self, kind: str = "box") -> None:
        self.action_space = SPACES.get(kind) or spaces.Dict({"a": spaces.Discrete(2)})
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)

    def _obs(self) -> Any:
        return np.zeros(3)

    def step(self, action: Any) -> Any:
        right = action.dtype == self.action_space.dtype and self.action_space.contains(action)
        return np.array([*np.resize(action, 2), right], np.float64), 0.0, False, False, {}


class Counted(Echo):
    """Writes a line to the file ``path`` when it is made, and one when it is closed."""

    def __init__(self, path: str) -> None:
        super().__init__("discrete")
        self.path = path
        self.note("made")

    def note(self, what: str) -> None:
        with open(self.path, "a") as file:
            file.write(f"{what}\n")

    def close(self) -> None:
        self.note("closed")


gym.register("test/Counted-v0", Counted, disable_env_checker=True)


class EchoVector(Vector):
    def __init__(self, num_envs: int, kind: str = "box") -> None:
        super().__init__(num_envs, Echo(kind).observation_space, Echo(kind).action_space)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((self.num_envs, 3)), {}

    def step(self, actions: np.ndarray) -> Any:
        right = actions.dtype == self.single_action_space.dtype
        told = np.stack([np.resize(a, 2) for a in actions])
        obs = np.concatenate([told, np.full((self.num_envs, 1), right)], axis=1)
        flags = np.zeros(self.num_envs, bool)
        return obs.astype(np.float64), np.zeros(self.num_envs), flags, flags.copy(), {}


gym.register("test/Echo-v0", f"{__name__}:Echo", vector_entry_point=f"{__name__}:EchoVector",
             disable_env_checker=True)  # fmt: skip


STRANGE = {  # value of t -> what simulators put beside numbers, and a name that rlrun uses
    "path": lambda t: np.zeros(1 + t % 3),
    "event": lambda t: (0, "goal", None)[t % 3],
    "nested": lambda t: {"a": 1} if t % 2 else 0,
    "huge": lambda t: 10**400,
    "grows": lambda t: [1] * t,
    "rlrun/kept": lambda t: 7.0,
}


class Telling(Env):
    """Infos of all kinds; ``won`` is an integer at first, then 0.5, and absent in every third."""

    def __init__(self, bare: Any = None) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.t, self.bare = 0, bare

    def _told(self) -> Any:
        if self.bare is not None and self.t == 2:
            return self.bare
        own = {} if self.t % 3 == 2 else {"won": 0 if self.t == 0 else np.float64(0.5)}
        return {key: value(self.t) for key, value in STRANGE.items()} | own

    def _obs(self) -> Any:
        return np.full(1, self.t, np.float32)

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._obs(), 1.0, False, self.t == 5, self._told()


class TellingVector(Vector):
    """``Telling`` as a native vector environment whose infos are lists."""

    def __init__(self, num_envs: int, bare: Any = None) -> None:
        self.envs = [Telling(bare) for _ in range(num_envs)]
        super().__init__(num_envs, self.envs[0].observation_space, self.envs[0].action_space)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.done = False
        return np.stack([env.reset()[0] for env in self.envs]), {}

    def step(self, actions: Any) -> Any:
        each = [(*e.reset(), 0, 0, 0) if self.done else e.step(0) for e in self.envs]
        if self.done:
            each = [(obs, 0.0, False, False, info) for obs, info, *_ in each]
        obs, reward, terminated, truncated, infos = zip(*each, strict=True)
        self.done, info = truncated[0], infos[0]
        if isinstance(info, dict):
            info = {key: [one[key] for one in infos] for key in infos[0]}
            info |= {f"_{key}": np.ones(self.num_envs, bool) for key in infos[0]}
        flags = np.array(terminated), np.array(truncated)
        return np.stack(obs), np.array(reward), *flags, info


gym.register("test/Telling-v0", f"{__name__}:Telling", disable_env_checker=True,
             vector_entry_point=f"{__name__}:TellingVector")  # fmt: skip
