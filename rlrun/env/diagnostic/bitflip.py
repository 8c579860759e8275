"""BitFlip: reach a goal among 2^n states by flipping bits, with a sparse reward."""

from typing import Any

import numpy as np
from gymnasium import spaces

from rlrun.env.diagnostic.vector import LockstepVectorEnv, SingleFromVector, require_int


class BitFlipVectorEnv(LockstepVectorEnv):
    """A state and a goal of ``bits`` bits, sampled for every episode; action i flips bit i.

    Observation: dict of ``observation`` and ``achieved_goal`` (both the state) and
    ``desired_goal``, int8 [bits] each. Reward 0 for the step that reaches the goal, which ends the
    episode, -1 for every other. Truncated after ``bits`` steps, as many as the farthest goal needs.
    ``info["is_success"]`` of an episode's last step is True if the goal was reached.

    Goals that equal the initial state are resampled. Return of an oracle: 1 - d for a goal d bits
    away, 1 - bits/2 · 2^bits/(2^bits - 1) on average. Return without success: -bits.

    Source: Andrychowicz et al. 2017, section 3.1 (the task; its episodes continue at the goal).
    """

    def __init__(
        self, num_envs: int = 1, *, bits: int = 16, max_episode_steps: int | None = None
    ) -> None:
        require_int("bits", bits, 1)
        keys = ("achieved_goal", "desired_goal", "observation")
        super().__init__(
            num_envs,
            observation_space=spaces.Dict({key: spaces.MultiBinary(bits) for key in keys}),
            action_space=spaces.Discrete(bits),
            max_episode_steps=max_episode_steps,
        )
        self.bits = bits
        self.state = np.zeros((num_envs, bits), np.int8)
        self.goal = np.zeros((num_envs, bits), np.int8)
        self.success = np.zeros(num_envs, np.bool_)

    @staticmethod
    def compute_reward(
        achieved_goal: np.ndarray, desired_goal: np.ndarray, info: object
    ) -> np.ndarray:
        """Return float32 [*]: 0 where the goals [*, bits] are equal, -1 elsewhere."""
        equal = BitFlipVectorEnv.compute_terminated(achieved_goal, desired_goal, info)
        return np.where(equal, np.float32(0), np.float32(-1))

    @staticmethod
    def compute_terminated(
        achieved_goal: np.ndarray, desired_goal: np.ndarray, info: object
    ) -> np.ndarray:
        """Return bool [*]: True where the goals [*, bits] are equal."""
        equal: np.ndarray = np.equal(achieved_goal, desired_goal).all(axis=-1)
        return equal

    def _reset_columns(self, columns: np.ndarray) -> None:
        for i in columns:
            start, goal = self.rngs[i].integers(2, size=(2, self.bits), dtype=np.int8)
            while (start == goal).all():
                goal = self.rngs[i].integers(2, size=self.bits, dtype=np.int8)
            self.state[i], self.goal[i] = start, goal
        self.limit[columns] = self.bits

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.state[self.columns, action] ^= 1
        self.success = self.compute_terminated(self.state, self.goal, {})
        return self.compute_reward(self.state, self.goal, {}), self.success.copy()

    def _observe(self) -> dict[str, np.ndarray]:
        parts = (self.state, self.goal, self.state)
        keys = self.single_observation_space.spaces  # type: ignore[attr-defined]
        return {key: part.copy() for key, part in zip(keys, parts, strict=True)}

    def _info(self, done: np.ndarray) -> dict[str, Any]:
        return {"is_success": self.success & done, "_is_success": done} if done.any() else {}


class BitFlipEnv(SingleFromVector):
    vector = BitFlipVectorEnv
    compute_reward = staticmethod(BitFlipVectorEnv.compute_reward)
    compute_terminated = staticmethod(BitFlipVectorEnv.compute_terminated)
