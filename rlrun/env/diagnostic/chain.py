"""Chain: an exploration problem with its reward at the end of a long sequence of right moves."""

import numpy as np
from gymnasium import spaces

from rlrun.env.diagnostic.vector import LockstepVectorEnv, SingleFromVector, require_int

SMALL_REWARD, LARGE_REWARD = 0.001, 1.0
EXTRA_STEPS = 9  # env steps of an episode beyond the chain's length


class ChainVectorEnv(LockstepVectorEnv):
    """States 1 to N in a row; one action moves up, the others down, within the range.

    An episode starts in state 2 and is truncated after N + 9 steps. The reward of a step is 1/1000
    if it ends in state 1, 1 if it ends in state N, else 0. Best return 12 (N - 2 steps to state N,
    then 11 more); (N + 9)/1000 for always moving down. Two actions chosen uniformly reach state N
    in one of 1650 episodes for N = 20, in one of 10^8 for N = 40. Observation float32 [N], the
    "thermometer" code: 1 at the positions up to the state, else 0.

    ``pattern`` seeds the choice of the action that moves up, one per state. Without it (null:
    action 1 everywhere) a network that happens to prefer action 1 reaches the end without
    exploration. The pattern is the same in all columns and episodes and independent of the
    environment's seed.

    Source: Osband et al. 2016 (Bootstrapped DQN), section 5; the pattern: Osband et al. 2020
    (bsuite, deep sea).
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        length: int = 20,
        pattern: int | None = 0,
        actions: int = 2,
        max_episode_steps: int | None = None,
    ) -> None:
        require_int("length", length, 3)
        require_int("actions", actions, 2)
        if pattern is not None:
            require_int("pattern", pattern, 0)
        super().__init__(
            num_envs,
            observation_space=spaces.Box(0, 1, (length,), np.float32),
            action_space=spaces.Discrete(actions),
            max_episode_steps=max_episode_steps,
        )
        self.length = length
        sampled = np.random.default_rng(pattern).integers(actions, size=length)
        self.up = np.ones(length, np.int64) if pattern is None else sampled  # action that moves up
        self.state = np.zeros(num_envs, np.int64)  # 0 to N - 1

    def _reset_columns(self, columns: np.ndarray) -> None:
        self.state[columns] = 1
        self.limit[columns] = self.length + EXTRA_STEPS

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        move = np.where(action == self.up[self.state], 1, -1)
        self.state = np.clip(self.state + move, 0, self.length - 1)
        reward = np.where(self.state == 0, SMALL_REWARD, 0.0)
        reward[self.state == self.length - 1] = LARGE_REWARD
        return reward.astype(np.float32), np.zeros(self.num_envs, np.bool_)

    def _observe(self) -> np.ndarray:
        return (np.arange(self.length) <= self.state[:, None]).astype(np.float32)


class ChainEnv(SingleFromVector):
    vector = ChainVectorEnv
