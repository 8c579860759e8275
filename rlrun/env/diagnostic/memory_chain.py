"""bsuite's memory chain: bits seen at the start, one of which is asked for at the end."""

import numpy as np
from gymnasium import spaces

from rlrun.env.diagnostic.vector import LockstepVectorEnv, SingleFromVector, require_int


class MemoryChainVectorEnv(LockstepVectorEnv):
    """Remember ``bits`` random bits for ``length`` steps, then say the one that is asked for.

    Observation float32 [2 + bits]: the share of the time that is left, the number of the bit that
    is asked for (in the last but one observation, else 0), and the bits as -1 and 1 (in the first
    two, else 0). An episode has ``length`` + 1 steps; only its last action counts, with reward +1
    for the right bit and -1 for the other. Return of an oracle 1, without memory 0 on average.

    ``bits`` 1 with ``length`` 1 to 100 is bsuite's memory_len, ``length`` 2 with ``bits`` 1 to 40
    its memory_size. The rows are bsuite's, its clock included, which starts with the first step.
    Source: Osband et al. 2020, "Behaviour suite for reinforcement learning", section 3.4.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        length: int = 10,
        bits: int = 1,
        full_state: bool = False,
        max_episode_steps: int | None = None,
    ) -> None:
        require_int("length", length, 1)
        require_int("bits", bits, 1)
        low = np.array([0, 0, *[-1] * bits], np.float32)
        high = np.array([1, max(bits - 1, 1), *[1] * bits], np.float32)
        super().__init__(
            num_envs,
            observation_space=spaces.Box(low, high),
            action_space=spaces.Discrete(2),
            max_episode_steps=max_episode_steps,
            full_state=2 if full_state else None,
        )
        self.length = length
        self.bits = bits
        self.context = np.zeros((num_envs, bits), np.int64)
        self.query = np.zeros(num_envs, np.int64)

    def _reset_columns(self, columns: np.ndarray) -> None:
        for i in columns:
            self.context[i] = self.rngs[i].integers(2, size=self.bits)
            self.query[i] = self.rngs[i].integers(self.bits)

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        last = self.t >= self.length
        correct = action == self.context[self.columns, self.query]
        return (np.where(correct, 1.0, -1.0) * last).astype(np.float32), last

    def _observe(self) -> np.ndarray:
        clock = np.maximum(self.t - 1, 0)
        obs = np.zeros((self.num_envs, 2 + self.bits), np.float32)
        obs[:, 0] = 1 - clock / self.length
        obs[:, 1] = self.query * (clock == self.length - 1)
        obs[:, 2:] = (2 * self.context - 1) * (clock == 0)[:, None]
        return obs

    def _full_state(self) -> np.ndarray:
        return np.eye(2, dtype=np.float32)[self.context[self.columns, self.query]]


class MemoryChainEnv(SingleFromVector):
    vector = MemoryChainVectorEnv
