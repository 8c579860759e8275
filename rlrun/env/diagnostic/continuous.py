"""Environments with continuous actions that a correct learner solves in seconds."""

from typing import Any

import numpy as np
from gymnasium import spaces

from rlrun.env.diagnostic.vector import LockstepVectorEnv, SingleFromVector, require_int


def _box(low: Any, high: Any, size: int) -> spaces.Box:
    for name, value in (("low", low), ("high", high)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise ValueError(f"{name} = {value}: must be a finite number")
    if low >= high:
        raise ValueError(f"low = {low}: must be below high (= {high})")
    return spaces.Box(low, high, (size,), np.float32)


class BanditContinuousVectorEnv(LockstepVectorEnv):
    """One step per episode, a constant observation: reward -mean((action - target)^2).

    Actions [dims] lie within [low, high], which need not be centred at 0 or at the target, so that
    a policy with wrongly scaled actions fails. Best return 0; of uniform actions
    -((high - low)^2 / 12 + (centre - target)^2).
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        target: float = 1.2,
        low: float = -1.0,
        high: float = 2.0,
        dims: int = 1,
        max_episode_steps: int | None = None,
    ) -> None:
        require_int("dims", dims, 1)
        action = _box(low, high, dims)
        if not low <= target <= high:
            raise ValueError(f"target = {target}: must be within [{low}, {high}]")
        super().__init__(
            num_envs,
            observation_space=spaces.Box(0, 1, (1,), np.float32),
            action_space=action,
            max_episode_steps=max_episode_steps,
        )
        self.target = target

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        reward = -np.square(action - self.target).mean(axis=1)
        return reward.astype(np.float32), np.ones(self.num_envs, np.bool_)

    def _observe(self) -> np.ndarray:
        return np.ones((self.num_envs, 1), np.float32)


class TrackingVectorEnv(LockstepVectorEnv):
    """Reproduce the observation of ``lag`` steps ago; observations float32 [1] uniform in [-1, 1].

    The action [1] lies within [-2, 2]; the reward is -(action - obs[t - lag])^2, 0 in the first
    ``lag`` steps. Episodes are truncated after ``length`` steps. Best return 0; of uniform actions
    -(length - lag) * (4/3 + 1/3); of action 0 (the best without memory for ``lag`` > 0)
    -(length - lag) / 3.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        length: int = 10,
        lag: int = 0,
        max_episode_steps: int | None = None,
    ) -> None:
        require_int("length", length, 1)
        require_int("lag", lag, 0, length - 1)
        super().__init__(
            num_envs,
            observation_space=spaces.Box(-1, 1, (1,), np.float32),
            action_space=spaces.Box(-2, 2, (1,), np.float32),
            max_episode_steps=max_episode_steps,
        )
        self.length, self.lag = length, lag
        self.symbols = np.zeros((num_envs, length + 1), np.float32)

    def _reset_columns(self, columns: np.ndarray) -> None:
        for i in columns:
            self.symbols[i] = self.rngs[i].uniform(-1, 1, self.length + 1)
        self.limit[columns] = self.length

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        past = self.t - self.lag  # negative in the first lag steps
        target = self.symbols[self.columns, np.maximum(past, 0)]
        reward = np.where(past < 0, 0.0, -np.square(action[:, 0] - target))
        return reward.astype(np.float32), np.zeros(self.num_envs, np.bool_)

    def _observe(self) -> np.ndarray:
        return self.symbols[self.columns, self.t][:, None]


class BanditContinuousEnv(SingleFromVector):
    vector = BanditContinuousVectorEnv


class TrackingEnv(SingleFromVector):
    vector = TrackingVectorEnv
