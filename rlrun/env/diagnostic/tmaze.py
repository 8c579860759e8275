"""The T-maze: a cue at the start decides which way to turn at the end of a corridor."""

from typing import Any

import numpy as np
from gymnasium import spaces

from rlrun.env.diagnostic.lockstep import Lockstep, Single, need_count

FORWARD, LEFT, RIGHT = range(3)


class TMaze(Lockstep):
    """Observation float32 [4], one-hot: cue "left", cue "right" (t = 0 only), corridor, junction.

    ``length`` forward moves lead to the junction, where turning to the side the cue named gives
    +1, to the other side -0.1, and ends the episode. Every move without progress (a turn in the
    corridor, forward at the junction) gives -``penalty``. Truncated after 4 * ``length`` steps.
    ``info["is_success"]`` of an episode's last step says whether the turn was right.

    Nothing after t = 0 depends on the cue: corridor cells look alike, the cell is left behind even
    when the agent stays in it, and only 'forward' enters the junction, with reward 0, so that the
    previous action and reward seen there are the same in every episode. Three actions suffice: a
    fourth ('back') would only be one more idle move.

    ``balanced``: the cue is (env index + episode number) mod 2 instead of random, which splits an
    even number of episodes per environment (or of environments) exactly in half.

    Source: Bakker 2002 (the task); penalty, limit and wrong-turn reward are rlrun's own.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        length: int = 10,
        penalty: float = 0.02,
        balanced: bool = False,
        max_episode_steps: int | None = None,
    ) -> None:
        need_count("length", length, 1)
        if penalty < 0:
            raise ValueError(f"penalty = {penalty}: must be >= 0 (it is subtracted)")
        super().__init__(
            num_envs,
            observation_space=spaces.Box(0, 1, (4,), np.float32),
            action_space=spaces.Discrete(3),
            max_episode_steps=max_episode_steps,
        )
        self.length = length
        self.penalty = penalty
        self.balanced = balanced
        self.cue = np.zeros(num_envs, np.int64)  # 0: left, 1: right
        self.cell = np.zeros(num_envs, np.int64)
        self.success = np.zeros(num_envs, np.bool_)

    def _open(self, columns: np.ndarray) -> None:
        if self.balanced:
            self.cue[columns] = (self.index[columns] + self.episode[columns]) % 2
        else:
            self.cue[columns] = [self.rngs[i].integers(2) for i in columns]
        self.cell[columns] = 0
        self.limit[columns] = 4 * self.length

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        forward = action == FORWARD
        junction = self.cell == self.length
        turned = junction & ~forward
        walked = forward & ~junction
        self.success = turned & (action == self.cue + LEFT)
        self.cell += walked
        choices = [self.success, turned, walked]
        reward = np.select(choices, [1.0, -0.1, 0.0], -self.penalty).astype(np.float32)
        return reward, turned

    def _observe(self) -> np.ndarray:
        obs = np.zeros((self.num_envs, 4), np.float32)
        place = np.where(self.cell == self.length, 3, 2)
        obs[self.columns, np.where(self.t == 0, self.cue, place)] = 1
        return obs

    def _info(self, done: np.ndarray) -> dict[str, Any]:
        return {"is_success": self.success & done, "_is_success": done} if done.any() else {}


class TMazeSingle(Single):
    vector = TMaze
