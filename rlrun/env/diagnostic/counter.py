"""Counter: observations that identify their environment, episode and step, for tests of rows."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from gymnasium import spaces

from rlrun.env.diagnostic.vector import NO_LIMIT, LockstepVectorEnv, SingleFromVector, require_int


def counter_reward(index: np.ndarray, episode: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Return the reward of step t: (t + 1) + (episode mod 4) / 4 + (index mod 4) / 16, float32."""
    return np.asarray(t + 1 + episode % 4 / 4 + index % 4 / 16, np.float32)


class CounterVectorEnv(LockstepVectorEnv):
    """Observation float32 [3] = (env index, episode number, t within the episode), exactly.

    Episode e of environment i has ``lengths[(i + e) mod len]`` steps, or with ``random`` a number
    uniform in [min(lengths), max(lengths)]. ``end`` is the kind of end; ``alternate``: terminated
    where i + e is even, truncated where it is odd. Actions have no effect.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        lengths: Sequence[int] = (5,),
        random: bool = False,
        end: Literal["terminated", "truncated", "alternate"] = "terminated",
        max_episode_steps: int | None = None,
    ) -> None:
        require_int("number of lengths", len(lengths), 1)
        for length in lengths:
            require_int("lengths", length, 1)
        if end not in ("terminated", "truncated", "alternate"):
            raise ValueError(f"end = {end}: must be terminated, truncated or alternate")
        super().__init__(
            num_envs,
            observation_space=spaces.Box(0, np.inf, (3,), np.float32),
            action_space=spaces.Discrete(2),
            max_episode_steps=max_episode_steps,
        )
        self.lengths = np.array(lengths, np.int64)
        self.random = random
        self.end = end
        self.final = np.full(num_envs, NO_LIMIT)  # steps after which an episode is terminated

    def _reset_columns(self, columns: np.ndarray) -> None:
        number = self.index[columns] + self.episode[columns]
        if self.random:
            low, high = self.lengths.min(), self.lengths.max()
            sampled = [self.rngs[i].integers(low, high, endpoint=True) for i in columns]
            length = np.array(sampled, np.int64)
        else:
            length = self.lengths[number % len(self.lengths)]
        even = number % 2 == 0
        terminates = (
            even if self.end == "alternate" else np.full_like(even, self.end == "terminated")
        )
        self.final[columns] = np.where(terminates, length, NO_LIMIT)
        self.limit[columns] = np.where(terminates, NO_LIMIT, length)

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return counter_reward(self.index, self.episode, self.t), self.t + 1 >= self.final

    def _observe(self) -> np.ndarray:
        return np.stack((self.index, self.episode, self.t), axis=1).astype(np.float32)


class CounterEnv(SingleFromVector):
    vector = CounterVectorEnv
