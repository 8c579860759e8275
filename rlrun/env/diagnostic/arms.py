"""POPGym's MultiarmedBandit: arms that pay with unknown probabilities, new in every episode."""

import numpy as np
from gymnasium import spaces

from rlrun.env.diagnostic.vector import LockstepVectorEnv, SingleFromVector, require_int


class MultiarmedBanditVectorEnv(LockstepVectorEnv):
    """Find the arm that pays most often, and keep to it.

    Every episode samples the probability of each of ``arms`` arms uniformly. The observation is 1
    if the last action was paid, else 0; the agent has to know that action (``policy.prev_inputs``).
    Reward +1 / ``steps`` if paid, minus the same if not. Truncated after ``steps`` steps. Return of
    the best arm 2 * arms / (arms + 1) - 1 on average, of random actions 0. 10 arms and 200 steps,
    20 and 400, 30 and 600 are POPGym's easy, medium and hard.

    One seed gives the arms and rows of popgym 1.0.7. Source: Morad et al., ICLR 2023.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        arms: int = 10,
        steps: int = 200,
        full_state: bool = False,
        max_episode_steps: int | None = None,
    ) -> None:
        require_int("arms", arms, 2)
        require_int("steps", steps, 1)
        super().__init__(
            num_envs,
            observation_space=spaces.Discrete(2),
            action_space=spaces.Discrete(arms),
            max_episode_steps=max_episode_steps,
            full_state=arms if full_state else None,
        )
        self.steps = steps
        self.chances = np.zeros((num_envs, arms), np.float32)
        self.paid = np.zeros(num_envs, np.int64)

    def _reset_columns(self, columns: np.ndarray) -> None:
        for i in columns:
            self.chances[i] = self.rngs[i].random(self.chances.shape[1], dtype=np.float32)
        self.paid[columns] = 0
        self.limit[columns] = self.steps

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        chance = self.chances[self.columns, action]
        for i in np.flatnonzero(~self._done):  # a column that resets draws there
            self.paid[i] = self.rngs[i].random() < chance[i]
        reward = np.where(self.paid == 1, 1 / self.steps, -1 / self.steps).astype(np.float32)
        return reward, np.zeros(self.num_envs, np.bool_)

    def _observe(self) -> np.ndarray:
        return self.paid.copy()

    def _full_state(self) -> np.ndarray:
        return self.chances.copy()


class MultiarmedBanditEnv(SingleFromVector):
    vector = MultiarmedBanditVectorEnv
