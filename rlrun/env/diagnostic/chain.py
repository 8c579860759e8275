"""The chain: a reward at the far end that only a long run of the same right moves finds."""

import numpy as np
from gymnasium import spaces

from rlrun.env.diagnostic.lockstep import Lockstep, Single, need_count

BAIT, PRIZE = 0.001, 1.0
EXTRA = 9  # env steps of an episode beyond the chain's length


class Chain(Lockstep):
    """States 1 to N in a row; one action moves up, the others down, as far as there is room.

    An episode starts in state 2 and is truncated after N + 9 steps. A step that ends in state 1
    pays 1/1000, one that ends in state N pays 1, any other nothing. Best return 12 (N - 2 steps to
    get there, 11 more to stay), of always moving down (N + 9)/1000. Two actions drawn evenly get to
    the prize in one of 1650 episodes for N = 20, in one of 10^8 for N = 40. Observation float32
    [N], the "thermometer": 1 in the places up to the state, else 0.

    ``pattern`` is the seed of a coin for each state that says which action moves up there: without
    it (null: action 1 everywhere) a network that happens to prefer that action walks to the end
    without exploring anything, the rarer the more ``actions`` there are. The coins belong to the
    environment: they differ neither between columns nor between episodes nor with its seed.

    Source: Osband et al. 2016 (Bootstrapped DQN), section 5; the coins: Osband et al. 2020 (bsuite,
    deep sea).
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
        need_count("length", length, 3)
        need_count("actions", actions, 2)
        if pattern is not None:
            need_count("pattern", pattern, 0)
        super().__init__(
            num_envs,
            observation_space=spaces.Box(0, 1, (length,), np.float32),
            action_space=spaces.Discrete(actions),
            max_episode_steps=max_episode_steps,
        )
        self.length = length
        coins = np.random.default_rng(pattern).integers(actions, size=length)
        self.up = np.ones(length, np.int64) if pattern is None else coins  # action that moves up
        self.state = np.zeros(num_envs, np.int64)  # 0 to N - 1

    def _open(self, columns: np.ndarray) -> None:
        self.state[columns] = 1
        self.limit[columns] = self.length + EXTRA

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        move = np.where(action == self.up[self.state], 1, -1)
        self.state = np.clip(self.state + move, 0, self.length - 1)
        reward = np.where(self.state == 0, BAIT, 0.0)
        reward[self.state == self.length - 1] = PRIZE
        return reward.astype(np.float32), np.zeros(self.num_envs, np.bool_)

    def _observe(self) -> np.ndarray:
        return (np.arange(self.length) <= self.state[:, None]).astype(np.float32)


class ChainSingle(Single):
    vector = Chain
