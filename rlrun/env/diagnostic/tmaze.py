"""T-maze: a cue at the start determines the rewarded turn at the end of a corridor."""

from typing import Any

import numpy as np
from gymnasium import spaces

from rlrun.env.diagnostic.picture import BLUE, DARK, GREEN, GREY, RED, canvas, fill
from rlrun.env.diagnostic.vector import LockstepVectorEnv, SingleFromVector, require_int

FORWARD, LEFT, RIGHT = range(3)


class TMazeVectorEnv(LockstepVectorEnv):
    """Observation float32 [4], one-hot: cue "left", cue "right" (t = 0 only), corridor, junction.

    ``length`` forward moves lead to the junction, where a turn to the side of the cue is rewarded
    with +1, to the other side with -0.1, and ends the episode. Every move without progress (a turn
    in the corridor, forward at the junction) is rewarded with -``penalty``. Truncated after
    4 * ``length`` steps. ``info["is_success"]`` of an episode's last step is True for a turn to the
    side of the cue.

    Nothing after t = 0 depends on the cue: corridor cells look alike, and the cue is observed at
    t = 0 only, even if the agent does not move. Only 'forward' enters the junction, with reward 0,
    so that the previous action and reward observed there are the same in every episode. A fourth
    action ('back') would only be one more move without progress.

    ``balanced``: the cue is (env index + episode number) mod 2 instead of random, so that the cues
    of an even number of episodes per environment (or of environments) are balanced exactly.

    Source: Bakker 2002 (the task); penalty, limit and wrong-turn reward are rlrun's own.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        length: int = 10,
        penalty: float = 0.02,
        balanced: bool = False,
        full_state: bool = False,
        max_episode_steps: int | None = None,
    ) -> None:
        require_int("length", length, 1)
        if penalty < 0:
            raise ValueError(f"penalty = {penalty}: must be >= 0 (it is subtracted)")
        super().__init__(
            num_envs,
            observation_space=spaces.Box(0, 1, (4,), np.float32),
            action_space=spaces.Discrete(3),
            max_episode_steps=max_episode_steps,
            full_state=4 if full_state else None,
        )
        self.length = length
        self.penalty = penalty
        self.balanced = balanced
        self.cue = np.zeros(num_envs, np.int64)  # 0: left, 1: right
        self.cell = np.zeros(num_envs, np.int64)
        self.success = np.zeros(num_envs, np.bool_)

    def _reset_columns(self, columns: np.ndarray) -> None:
        if self.balanced:
            self.cue[columns] = (self.index[columns] + self.episode[columns]) % 2
        else:
            self.cue[columns] = [self.rngs[i].integers(2) for i in columns]
        self.cell[columns] = 0
        self.limit[columns] = 4 * self.length

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        forward = action == FORWARD
        junction = self.cell == self.length
        turns = junction & ~forward
        moves = forward & ~junction
        self.success = turns & (action == self.cue + LEFT)
        self.cell += moves
        choices = [self.success, turns, moves]
        reward = np.select(choices, [1.0, -0.1, 0.0], -self.penalty).astype(np.float32)
        return reward, turns

    def _observe(self) -> np.ndarray:
        obs = np.zeros((self.num_envs, 4), np.float32)
        symbol = np.where(self.cell == self.length, 3, 2)
        obs[self.columns, np.where(self.t == 0, self.cue, symbol)] = 1
        return obs

    def _full_state(self) -> np.ndarray:
        """Return the cue, whatever ``t``, and whether the agent is in the corridor or junction."""
        state = np.zeros((self.num_envs, 4), np.float32)
        state[self.columns, self.cue] = 1
        state[self.columns, np.where(self.cell == self.length, 3, 2)] = 1
        return state

    def picture(self, column: int) -> np.ndarray:
        """Return the maze from above: rewarded side green, other side red, agent blue.

        The cue is drawn in the first cell while it is observed. After a turn the agent is on its
        side.
        """
        cell, cue = int(self.cell[column]), int(self.cue[column])
        image = canvas(3, self.length + 1)
        for i in range(self.length + 1):
            fill(image, 1, i, GREY)
        for side in (0, 1):
            fill(image, 2 * side, self.length, GREEN if side == cue else RED)
        if self.t[column] == 0:
            fill(image, 2 * cue, 0, DARK, inset=8)
        row, won = 1, bool(self.success[column])
        if self._done[column] and (
            won or (cell == self.length and self.t[column] < self.limit[column])
        ):
            row = 2 * (cue if won else 1 - cue)
        fill(image, row, cell, BLUE, inset=5)
        return image

    def _info(self, done: np.ndarray) -> dict[str, Any]:
        return {"is_success": self.success & done, "_is_success": done} if done.any() else {}


class TMazeEnv(SingleFromVector):
    vector = TMazeVectorEnv
