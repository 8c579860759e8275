"""An environment of any spaces, flags, infos and masks, named by words: ``FuzzEnv-v0``."""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

F32, F64, U8 = np.float32, np.float64, np.uint8
INF = float("inf")

OBS: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-1, 1, (3,), F32),
    "unbounded": spaces.Box(-INF, INF, (4,), F32),
    "half": spaces.Box(0, INF, (2,), F64),
    "float64": spaces.Box(-1e12, 1e12, (2,), F64),
    "float16": spaces.Box(-1, 1, (2,), np.float16),
    "scalar": spaces.Box(-1, 1, (), F32),
    "one": spaces.Box(-1, 1, (1,), F32),
    "empty": spaces.Box(-1, 1, (0,), F32),
    "matrix": spaces.Box(-1, 1, (2, 3), F32),
    "uint8": spaces.Box(0, 3, (5,), U8),
    "int8": spaces.Box(-3, 3, (5,), np.int8),
    "int64": spaces.Box(-(2**40), 2**40, (2,), np.int64),
    "point": spaces.Box(1, 1, (2,), F32),
    "bool": spaces.Box(0, 1, (4,), np.bool_),
    "planes": spaces.MultiBinary(6),
    "planes2": spaces.MultiBinary((2, 3)),
    "discrete": spaces.Discrete(4),
    "discrete_start": spaces.Discrete(4, start=-2),
    "multi": spaces.MultiDiscrete([3, 2]),
    "multi2": spaces.MultiDiscrete([[3, 2], [4, 5]]),
    "image": spaces.Box(0, 255, (40, 40, 3), U8),
    "gray": spaces.Box(0, 255, (36, 36, 1), U8),
    "flat_image": spaces.Box(0, 255, (36, 36), U8),
    "tiny_image": spaces.Box(0, 255, (4, 4, 3), U8),
    "float_image": spaces.Box(0, 1, (40, 40, 3), F32),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), F32))),
    "dict": spaces.Dict({"a": spaces.Box(-1, 1, (2,), F32), "b": spaces.Discrete(3)}),
    "nested": spaces.Dict(
        {"x": spaces.Dict({"y": spaces.Box(-1, 1, (1,), F64)}), "z": spaces.MultiBinary(2)}
    ),
    "image_and_vector": spaces.Dict(
        {"image": spaces.Box(0, 255, (40, 40, 3), U8), "vector": spaces.Box(-1, 1, (3,), F32)}
    ),
    "goal": spaces.Dict(
        {k: spaces.Box(-1, 1, (2,), F32) for k in ("observation", "achieved_goal", "desired_goal")}
    ),
    "text": spaces.Text(4),
    "sequence": spaces.Sequence(spaces.Discrete(3)),
    "no_dict": spaces.Dict({}),
    "no_tuple": spaces.Tuple(()),
}

ACTIONS: dict[str, spaces.Space[Any]] = {
    "one": spaces.Discrete(1),
    "two": spaces.Discrete(2),
    "five": spaces.Discrete(5),
    "start": spaces.Discrete(3, start=5),
    "negative": spaces.Discrete(3, start=-1),
    "multi": spaces.MultiDiscrete([3, 2]),
    "multi2": spaces.MultiDiscrete([[2, 2], [3, 2]]),
    "multi_start": spaces.MultiDiscrete([3, 2], start=[1, -1]),
    "binary": spaces.MultiBinary(3),
    "box": spaces.Box(-1, 1, (1,), F32),
    "box2": spaces.Box(-2, 2, (2,), F32),
    "box_away": spaces.Box(10, 20, (2,), F32),
    "box_small": spaces.Box(-0.001, 0.001, (1,), F32),
    "box_mixed": spaces.Box(np.array([-1, 0], F32), np.array([1, 100], F32)),
    "box_half": spaces.Box(0, INF, (1,), F32),
    "box_unbounded": spaces.Box(-INF, INF, (2,), F32),
    "box_part": spaces.Box(np.array([-1, -INF], F32), np.array([1, INF], F32)),
    "box_scalar": spaces.Box(-1, 1, (), F32),
    "box_empty": spaces.Box(-1, 1, (0,), F32),
    "box_matrix": spaces.Box(-1, 1, (2, 2), F32),
    "box_float64": spaces.Box(-1, 1, (2,), F64),
    "box_huge": spaces.Box(-3e38, 3e38, (1,), F32),
    "box_point": spaces.Box(2, 2, (1,), F32),
    "box_int": spaces.Box(0, 3, (2,), np.int64),
    "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (1,), F32))),
    "dict": spaces.Dict({"a": spaces.Discrete(2)}),
    "text": spaces.Text(3),
}

ENDS = ("random", "terminated", "truncated", "both", "first", "never")
INFOS = ("empty", "odd", "mask")
REWARDS = ("plain", "int", "numpy", "array", "zero", "large", "bool")


class FuzzEnv(gym.Env[Any, Any]):
    """Observations and ends are drawn; every number it returns is within its contract."""

    def __init__(
        self,
        obs: str = "vector",
        action: str = "two",
        end: str = "random",
        info: str = "empty",
        reward: str = "plain",
        mask: bool = False,
    ) -> None:
        self._end, self._info, self._reward = end, info, reward
        self._inner = copy.deepcopy(OBS[obs])
        self.action_space = copy.deepcopy(ACTIONS[action])
        self._masked = mask and isinstance(self.action_space, spaces.Discrete)
        self._n = int(getattr(self.action_space, "n", 1)) if self._masked else 1
        self.observation_space: Any = self._inner
        if self._masked:
            mask_space = spaces.MultiBinary(self._n)
            self.observation_space = spaces.Dict({"x": self._inner, "action_mask": mask_space})
        self._t = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._inner.seed(seed)
        self._t = 0
        return self._obs(), self._infos()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"the action {action!r} is not in {self.action_space}")
        self._t += 1
        draw = self.np_random.random()
        ends = self._end == "first" or (self._end != "never" and (draw < 0.15 or self._t >= 12))
        terminated = ends and (self._end in ("terminated", "both") or draw < 0.08)
        truncated = ends and (not terminated or self._end == "both")
        return self._obs(), self._rewards(draw), terminated, truncated, self._infos()

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return -np.linalg.norm(np.asarray(achieved) - np.asarray(desired), axis=-1)

    def _obs(self) -> Any:
        obs = self._inner.sample()
        if not self._masked:
            return obs
        mask = self.np_random.integers(0, 2, self._n).astype(np.int8)
        mask[self.np_random.integers(self._n)] = 1
        return {"x": obs, "action_mask": mask}

    def _rewards(self, draw: float) -> Any:
        return {
            "plain": draw,
            "int": int(draw * 3),
            "numpy": F32(draw),
            "array": np.array(draw),
            "zero": 0.0,
            "large": draw * 1e6,
            "bool": draw > 0.5,
        }[self._reward]

    def _infos(self) -> dict[str, Any]:
        if self._info == "empty":
            return {}
        if self._info == "mask":
            return {"action_mask": np.ones(int(getattr(self.action_space, "n", 2)), np.int8)}
        t = self._t
        return {
            "path": np.zeros(1 + t % 3),
            "event": (0, "goal", None)[t % 3],
            "m": {"a": 1} if t % 2 else 0,
            "serial": 2**70,
            "reward": "text",
            "episode": t,
            "TimeLimit.truncated": t,
            "final_obs": t,
            "_x": object,
        }


gym.register(id="FuzzEnv-v0", entry_point="tests.faults.fuzz_env:FuzzEnv")
