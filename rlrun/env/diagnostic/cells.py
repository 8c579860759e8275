"""Battleship and MineSweeper: boards whose cells may be chosen once, with an action mask."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from rlrun.env.diagnostic.vector import LockstepVectorEnv, SingleFromVector, require_int
from rlrun.functional.masks import MASK

UNKNOWN = 0  # of a cell in the observation


class CellsVectorEnv(LockstepVectorEnv):
    """A board of ``size`` x ``size`` cells. Action i uncovers cell i, which shows its content.

    Observation: dict of ``board``, int8 [size^2], 0 for an unknown cell, else 1 + its content, and
    ``action_mask``, int8 [size^2], 1 for a cell that was not chosen in this episode. ``show``:
    ``board``, all that is known of the board, or ``last``, only the cell uncovered last: then the
    rest is to be remembered. ``mask=False`` leaves ``action_mask`` out.

    Choosing a cell again is a step without effect whose reward is -``penalty``, with ``strict`` a
    ValueError.

    Truncated after size^2 steps.
    """

    contents: int  # of a cell, 0 to contents - 1

    def __init__(
        self,
        num_envs: int,
        *,
        size: int,
        show: Literal["board", "last"],
        mask: bool,
        strict: bool,
        penalty: float,
        max_episode_steps: int | None,
    ) -> None:
        require_int("size", size, 2, 30)
        if show not in ("board", "last"):
            raise ValueError(f"show = {show}: must be board or last")
        for name, value in (("mask", mask), ("strict", strict)):
            if not isinstance(value, bool):
                raise ValueError(f"{name} = {value}: must be true or false")
        cells = size * size
        parts: dict[str, Any] = {"board": spaces.Box(0, self.contents, (cells,), np.int8)}
        if mask:
            parts = {MASK: spaces.MultiBinary(cells), **parts}
        super().__init__(
            num_envs,
            observation_space=spaces.Dict(parts),
            action_space=spaces.Discrete(cells),
            max_episode_steps=max_episode_steps,
        )
        self.size, self.cells, self.show, self.mask = size, cells, show, mask
        self.strict, self.penalty = strict, float(penalty)
        self.content = np.zeros((num_envs, cells), np.int8)
        self.open = np.zeros((num_envs, cells), np.bool_)  # chosen in this episode
        self.last = np.zeros(num_envs, np.int64)  # cell uncovered last
        self.shown = np.zeros(num_envs, np.bool_)  # whether the last step uncovered one

    def _fill(self, rng: np.random.Generator) -> np.ndarray:
        """Return the contents [cells] of a new board."""
        raise NotImplementedError

    def _pay(self, content: np.ndarray) -> np.ndarray:
        """Return the reward [E] of uncovering cells of this content [E]."""
        raise NotImplementedError

    def _over(self) -> np.ndarray:
        """Return bool [E]: boards on which nothing is left to do."""
        raise NotImplementedError

    def _reset_columns(self, columns: np.ndarray) -> None:
        for i in columns:
            self.content[i] = self._fill(self.rngs[i])
        self.open[columns] = False
        self.shown[columns] = False
        self.limit[columns] = self.cells

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        again = self.open[self.columns, action]
        if self.strict and (wrong := np.flatnonzero(again & ~self._done)).size:
            i = wrong[0]
            raise ValueError(f"action {action[i]} is forbidden: that cell was chosen before")
        self.open[self.columns, action] = True
        self.last, self.shown = action.astype(np.int64), ~again
        paid = self._pay(self.content[self.columns, action])
        return np.where(again, -self.penalty, paid).astype(np.float32), self._over()

    def _observe(self) -> dict[str, np.ndarray]:
        known = self.open
        if self.show == "last":
            known = (np.arange(self.cells) == self.last[:, None]) & self.shown[:, None]
        board = np.where(known, self.content + np.int8(1), np.int8(UNKNOWN))
        return (
            {MASK: (~self.open).astype(np.int8), "board": board} if self.mask else {"board": board}
        )


class BattleshipVectorEnv(CellsVectorEnv):
    """Ships of the given lengths lie in rows or columns of the board, none on another: hit them.

    Content 1: a part of a ship. A hit pays 1 / (parts of ships), a miss costs 1 / (cells of water);
    the last hit ends the episode. Best return 1; shots at random cells, none twice, have
    1 / (parts + 1) on average: parts / (parts + 1) of the water is hit before the last ship is.
    """

    contents = 2

    def __init__(
        self,
        num_envs: int = 1,
        *,
        size: int = 4,
        ships: Sequence[int] = (3, 2),
        show: Literal["board", "last"] = "board",
        mask: bool = True,
        strict: bool = False,
        penalty: float = 0.1,
        max_episode_steps: int | None = None,
    ) -> None:
        require_int("number of ships", len(ships), 1)
        for length in ships:
            require_int("ships", length, 1, size)
        self.parts = int(sum(ships))
        if 2 * self.parts > size * size:
            raise ValueError(
                f"ships = {list(ships)}: must cover at most half of the {size**2} cells"
            )
        self.ships = np.array(ships, np.int64)
        given: dict[str, Any] = {"show": show, "mask": mask, "strict": strict, "penalty": penalty}
        super().__init__(num_envs, size=size, max_episode_steps=max_episode_steps, **given)

    def _fill(self, rng: np.random.Generator) -> np.ndarray:
        while True:  # a ship that fits nowhere: all are placed anew
            board = np.zeros((self.size, self.size), np.int8)
            for length in self.ships:
                across, line = rng.integers(2), rng.integers(self.size)
                start = rng.integers(self.size - length + 1)
                (board if across else board.T)[line, start : start + length] += 1
            if board.max() == 1:
                return board.ravel()

    def _pay(self, content: np.ndarray) -> np.ndarray:
        return np.where(content == 1, 1 / self.parts, -1 / (self.cells - self.parts))

    def _over(self) -> np.ndarray:
        over: np.ndarray = (self.open & (self.content == 1)).sum(axis=1) == self.parts
        return over


class MineSweeperVectorEnv(CellsVectorEnv):
    """``mines`` cells hold a mine, others the number of mines around them: uncover all of those.

    A safe cell pays 1 / (safe cells); a mine (content 9) pays nothing and ends the episode, as the
    last safe cell does. Best return 1; random cells, none twice, have 1 / (mines + 1) on average.
    """

    contents = 10

    def __init__(
        self,
        num_envs: int = 1,
        *,
        size: int = 4,
        mines: int = 2,
        show: Literal["board", "last"] = "board",
        mask: bool = True,
        strict: bool = False,
        penalty: float = 0.1,
        max_episode_steps: int | None = None,
    ) -> None:
        require_int("mines", mines, 1, size * size - 1)
        self.mines = mines
        given: dict[str, Any] = {"show": show, "mask": mask, "strict": strict, "penalty": penalty}
        super().__init__(num_envs, size=size, max_episode_steps=max_episode_steps, **given)

    def _fill(self, rng: np.random.Generator) -> np.ndarray:
        mine = np.zeros(self.cells, np.int8)
        mine[rng.permutation(self.cells)[: self.mines]] = 1
        padded = np.pad(mine.reshape(self.size, self.size), 1)
        n = self.size
        around = sum(padded[i : i + n, j : j + n] for i in range(3) for j in range(3))
        return np.where(mine == 1, 9, np.asarray(around).ravel()).astype(np.int8)

    def _pay(self, content: np.ndarray) -> np.ndarray:
        return np.where(content == 9, 0.0, 1 / (self.cells - self.mines))

    def _over(self) -> np.ndarray:
        mine = self.content == 9
        over: np.ndarray = (self.open & mine).any(axis=1) | (self.open | mine).all(axis=1)
        return over


class BattleshipEnv(SingleFromVector):
    vector = BattleshipVectorEnv


class MineSweeperEnv(SingleFromVector):
    vector = MineSweeperVectorEnv
