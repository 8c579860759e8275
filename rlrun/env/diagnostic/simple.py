"""Environments a correct learner solves in seconds: a bandit and an identity map."""

import numpy as np
from gymnasium import spaces

from rlrun.env.diagnostic.vector import LockstepVectorEnv, SingleFromVector, require_int


class BanditVectorEnv(LockstepVectorEnv):
    """Two arms, one step per episode, a constant observation: reward 1 for arm 1, 0 for arm 0.

    With probability ``noise`` the rewards of an episode are swapped. Expected return of arm 1 is
    1 - noise, of random actions 0.5.
    """

    def __init__(
        self, num_envs: int = 1, *, noise: float = 0.0, max_episode_steps: int | None = None
    ) -> None:
        if not 0 <= noise <= 1:
            raise ValueError(f"noise = {noise}: must be within [0, 1]")
        super().__init__(
            num_envs,
            observation_space=spaces.Box(0, 1, (1,), np.float32),
            action_space=spaces.Discrete(2),
            max_episode_steps=max_episode_steps,
        )
        self.noise = noise
        self.swapped = np.zeros(num_envs, np.bool_)

    def _reset_columns(self, columns: np.ndarray) -> None:
        if self.noise > 0:
            self.swapped[columns] = [self.rngs[i].random() < self.noise for i in columns]

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rewarded = (action == 1) ^ self.swapped
        return rewarded.astype(np.float32), np.ones(self.num_envs, np.bool_)

    def _observe(self) -> np.ndarray:
        return np.ones((self.num_envs, 1), np.float32)


class IdentityVectorEnv(LockstepVectorEnv):
    """Observation a symbol in 0..n-1, sampled each step: reward 1 for the same action, else 0.

    Episodes are truncated after ``length`` steps: return of an oracle ``length``, of random
    actions length / n.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        n: int = 4,
        length: int = 10,
        max_episode_steps: int | None = None,
    ) -> None:
        require_int("n", n, 2)
        require_int("length", length, 1)
        super().__init__(
            num_envs,
            observation_space=spaces.Discrete(n),
            action_space=spaces.Discrete(n),
            max_episode_steps=max_episode_steps,
        )
        self.n = n
        self.length = length
        self.symbols = np.zeros((num_envs, length + 1), np.int64)

    def _reset_columns(self, columns: np.ndarray) -> None:
        for i in columns:
            self.symbols[i] = self.rngs[i].integers(self.n, size=self.length + 1)
        self.limit[columns] = self.length

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        correct = action == self.symbols[self.columns, self.t]
        return correct.astype(np.float32), np.zeros(self.num_envs, np.bool_)

    def _observe(self) -> np.ndarray:
        symbol: np.ndarray = self.symbols[self.columns, self.t]
        return symbol


class BanditEnv(SingleFromVector):
    vector = BanditVectorEnv


class IdentityEnv(SingleFromVector):
    vector = IdentityVectorEnv
