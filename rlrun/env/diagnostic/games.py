"""POPGym's games, mazes and pendulum.

Rules, rewards and limits are those of popgym 1.0.7 (Morad et al., ICLR 2023). One seed gives the
same rows in both; in the mazes if the package draws from the environment's generator.
"""

import math
from collections.abc import Iterable

import numpy as np
from gymnasium import spaces

from rlrun.env.classic import Pendulum
from rlrun.env.diagnostic.memory import KINDS, CardsVectorEnv, kinds_of
from rlrun.env.diagnostic.tasks import count_around, count_parts
from rlrun.env.diagnostic.vector import (
    NO_LIMIT,
    LockstepVectorEnv,
    Spaces,
    choice,
    integer,
    integers,
    number,
    require_int,
)

LOWEST = 16.2736044  # largest cost of a step of Pendulum
FREE, WALL, START, GOAL = range(4)  # cells of a maze
CONTENTS = 5  # values of an observed cell: POPGym counts a hidden one
MOVES = np.array([[0, -1], [0, 1], [-1, 0], [1, 0]])  # left, right, up, down, as (row, column)


class ConcentrationVectorEnv(CardsVectorEnv):
    """Turn two cards over; they stay face up if they match.

    Observation int64 [52 decks]: the kind of a card that lies face up or was turned in this turn,
    else the number of kinds. Action i turns card i. Two cards of a kind pay 2 / (52 decks), two
    others cost 2 / limit, and a card that lies face up ends the turn at 1 / limit per card.
    Terminates with the last pair, truncated after ceil(2 n - n / (2 n - 1)) steps of n cards.
    """

    kind: str = choice("colors", "ranks")

    def _setup(self) -> Spaces:
        super()._setup()
        self.kinds = KINDS[self.kind]
        self.face_up, self.shown = (np.zeros(self.cards.shape, np.bool_) for _ in range(2))
        self.first = np.full(self.num_envs, -1)  # card turned first in this turn, -1: none
        self.steps = math.ceil(2 * self.size - self.size / (2 * self.size - 1))
        return spaces.MultiDiscrete([self.kinds + 1] * self.size), spaces.Discrete(self.size)

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        self.cards[i] = kinds_of(self._deal(rng)[::-1], self.kind)
        self.face_up[i] = self.shown[i] = False
        self.first[i], self.limit[i] = -1, self.steps

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        second, up = self.first >= 0, self.face_up[self.columns, action]
        first = np.where(second, self.first, action)
        self.shown = self.face_up.copy()
        self.shown[self.columns, action] = self.shown[self.columns, first] = True
        kinds = self.cards[self.columns, first], self.cards[self.columns, action]
        match = second & ~up & (first != action) & (kinds[0] == kinds[1])
        self.face_up[self.columns[match]] |= self.shown[match]
        self.first = np.where(up | second, -1, action)
        cost = (up | second) * (1 + second) / self.steps
        reward = np.where(match, 1 / (self.size // 2), -cost).astype(np.float32)
        over: np.ndarray = self.face_up.sum(axis=1) == self.size
        return reward, over

    def _observe(self) -> np.ndarray:
        return np.where(self.shown, self.cards, self.kinds)

    def _full_state(self) -> np.ndarray:
        """Return the kinds of all cards, one-hot, whether they lie face up, and the first one."""
        kinds = np.eye(self.kinds, dtype=np.float32)[self.cards].reshape(self.num_envs, -1)
        first = np.arange(self.size) == self.first[:, None]
        return np.concatenate([kinds, self.face_up, first], 1).astype(np.float32)


class HiddenBattleshipVectorEnv(LockstepVectorEnv):
    """Hit ships on a board that is never observed.

    Action [2]: row and column of a shot. Observation: 1 if the last shot hit a part of a ship for
    the first time, else 0, so the agent must know its actions (``policy.prev_inputs``). A hit pays
    1 / (parts of ships), any other shot costs 1 / (cells of water). Terminates with the last hit,
    truncated after size^2 steps.
    """

    size: int = integer(8, 2, 30)
    ships: tuple[int, ...] = integers((2, 3, 3, 4), 1)

    def _setup(self) -> Spaces:
        self.parts = count_parts(self.ships, self.size)
        self.afloat = np.zeros((self.num_envs, self.size, self.size), np.bool_)  # not yet hit
        self.hit = np.zeros(self.num_envs, np.bool_)
        return spaces.Discrete(2), spaces.MultiDiscrete([self.size] * 2)

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        self.afloat[i] = self._place(rng)
        self.hit[i], self.limit[i] = False, self.size**2

    def _place(self, rng: np.random.Generator) -> np.ndarray:
        """Return a board [size, size] with every ship at the first sampled place that is free."""
        board = np.zeros((self.size, self.size), np.bool_)
        for length in self.ships:
            free = False
            while not free:
                start, (axis, back) = rng.integers(self.size, size=2), rng.integers(2, size=2)
                end = start.copy()
                end[axis] += (1 - 2 * back) * (length - 1)
                (top, left), (bottom, right) = np.minimum(start, end), np.maximum(start, end)
                cells = board[top : bottom + 1, left : right + 1]
                free = min(top, left) >= 0 and max(bottom, right) < self.size and not cells.any()
            cells[:] = True
        return board

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        cell = self.columns, action[:, 0], action[:, 1]
        self.hit = self.afloat[cell]
        self.afloat[cell] = False
        reward = np.where(self.hit, 1 / self.parts, -1 / (self.size**2 - self.parts))
        sunk: np.ndarray = self.afloat.sum(axis=(1, 2)) == 0
        return reward.astype(np.float32), sunk

    def _observe(self) -> np.ndarray:
        return self.hit.astype(np.int64)


class HiddenMineSweeperVectorEnv(LockstepVectorEnv):
    """Uncover all cells without a mine on a board that is never observed.

    Action [2]: row and column of a cell. Observation: the number of mines in the 3 x 3 cells around
    it, so the agent must know its actions (``policy.prev_inputs``). With n safe cells, a new one
    pays 1 / n, one chosen before costs 1 / (2 n - 4), a mine 1/2 + 1 / n. Terminates with a mine or
    the last safe cell, truncated after n steps otherwise.
    """

    size: int = integer(4, 2, 30)
    mines: int = integer(2, 1)

    def _setup(self) -> Spaces:
        require_int("mines", self.mines, 1, self.size**2 - 3)
        self.safe = self.size**2 - self.mines
        shape = self.num_envs, self.size, self.size
        self.mine, self.viewed = (np.zeros(shape, np.bool_) for _ in range(2))
        self.around = np.zeros(shape, np.int64)  # mines in the 3 x 3 cells around
        self.number = np.zeros(self.num_envs, np.int64)
        return spaces.Discrete(min(self.mines + 1, 10)), spaces.MultiDiscrete([self.size] * 2)

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        mined = rng.choice(np.arange(self.size**2), size=self.mines, replace=False)
        self.mine[i] = False
        self.mine[i].flat[mined] = True
        self.around[i] = count_around(self.mine[i].astype(np.int64))
        self.viewed[i] = False
        self.number[i], self.limit[i] = 0, self.safe

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        cell = self.columns, action[:, 0], action[:, 1]
        mine, again, paid = self.mine[cell], self.viewed[cell], 1 / self.safe
        self.viewed[cell] |= ~mine
        self.number = self.around[cell]
        reward = np.where(again, -0.5 / (self.safe - 2), paid)
        over = mine | (self.viewed | self.mine).all(axis=(1, 2))
        self.limit[over] = NO_LIMIT  # no episode is truncated on the step that terminates it
        return np.where(mine, -0.5 - paid, reward).astype(np.float32), over

    def _observe(self) -> np.ndarray:
        return self.number.copy()


class LabyrinthEscapeVectorEnv(LockstepVectorEnv):
    """Find the exit of a maze, on the side opposite to the entrance.

    Mazes of ``size`` x ``size`` halls with walls between them, by hunt and kill. Actions: left,
    right, up, down. Observation int32 [10]: the 3 x 3 cells around the agent (0 free, 1 wall, 2
    entrance, 3 exit) and the last action (4: none). At an edge of the maze POPGym's view has the
    cells that exist in its upper left part and walls in the rest. Every step costs 1 / ``steps``,
    the exit pays 1 and terminates. Truncated after ``steps`` - 1 steps.
    """

    size: int = integer(5, 3, 30)
    steps: int = integer(1024, 2)
    has_exit = True

    def _setup(self) -> Spaces:
        self.side = 2 * self.size + 1
        self.maze = np.zeros((self.num_envs, self.side, self.side), np.int32)
        self.explored = np.zeros(self.maze.shape, np.bool_)
        self.position = np.zeros((self.num_envs, 2), np.int64)
        self.exit = np.zeros((self.num_envs, 2), np.int64)
        self.last = np.zeros(self.num_envs, np.int32)  # action
        return spaces.MultiDiscrete([CONTENTS] * 10, dtype=np.int32), spaces.Discrete(len(MOVES))

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        self.maze[i] = hunt_and_kill(self.size, rng)
        self.position[i], self.exit[i] = start, end = entrances(self.side, rng)
        self.maze[i][start] = START
        if self.has_exit:
            self.maze[i][end] = GOAL
        self.explored[i] = False
        self.explored[i][start] = True
        self.last[i], self.limit[i] = len(MOVES), self.steps - 1

    def _move(self, action: np.ndarray) -> np.ndarray:
        """Move the agents. Return bool [E]: to a cell that is new to them."""
        destination = np.clip(self.position + MOVES[action], 0, self.side - 1)
        free = self.maze[self.columns, destination[:, 0], destination[:, 1]] != WALL
        self.position = np.where(free[:, None], destination, self.position)
        self.last = action.astype(np.int32)
        cell = self.columns, self.position[:, 0], self.position[:, 1]
        new: np.ndarray = ~self.explored[cell]
        self.explored[cell] = True
        return new

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._move(action)
        out = (self.position == self.exit).all(1)
        return (out - 1 / self.steps).astype(np.float32), out

    def _observe(self) -> np.ndarray:
        first = np.maximum(self.position - 1, 0)[..., None] + np.arange(3)  # [E, 2, 3]
        last = np.minimum(self.position + 1, self.side - 1)[..., None]
        exists, at = first <= last, np.minimum(first, last)
        view = self.maze[self.columns[:, None, None], at[:, 0, :, None], at[:, 1, None]]
        view = np.where(exists[:, 0, :, None] & exists[:, 1, None], view, WALL)
        return np.concatenate([view.reshape(-1, 9), self.last[:, None]], 1, dtype=np.int32)


class LabyrinthExploreVectorEnv(LabyrinthEscapeVectorEnv):
    """Visit every cell of a maze.

    Mazes, actions, observations and limit of LabyrinthEscape, without an exit. A cell that is new
    pays 1 / (cells to visit), any other step costs 1 / ``steps``. The last cell terminates.
    """

    has_exit = False

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        new = self._move(action)
        paid = 1 / (self.maze == FREE).sum((1, 2))
        reward = np.where(new, paid, -1 / self.steps).astype(np.float32)
        return reward, (self.explored == (self.maze != WALL)).all((1, 2))


def hunt_and_kill(size: int, rng: np.random.Generator) -> np.ndarray:
    """Return a maze of ``size`` x ``size`` halls, int8 [2 size + 1, 2 size + 1], FREE or WALL.

    Random walks from halls that were visited to others, (2 size + 1)^2 times from a random hall. A
    hall may stay closed, with a small probability. Source: mazelib 0.9, HuntAndKill.
    """
    side = 2 * size + 1
    maze = [[WALL] * side for _ in range(side)]
    for trial in range(side * side + 1):
        row, column = 1 + 2 * int(rng.integers(size)), 1 + 2 * int(rng.integers(size))
        if trial == 0:
            maze[row][column] = FREE
        while maze[row][column] == FREE and (closed := _closed(maze, row, column)):
            r, c = closed[int(rng.integers(len(closed)))]
            maze[r][c] = maze[(r + row) // 2][(c + column) // 2] = FREE
            row, column = r, c
    return np.array(maze, np.int8)


def _closed(maze: list[list[int]], row: int, column: int) -> list[tuple[int, int]]:
    """Return the halls beside a hall that no walk has visited."""
    beside = (row - 2, column), (row + 2, column), (row, column - 2), (row, column + 2)
    last = len(maze) - 2
    return [(r, c) for r, c in beside if 1 <= r <= last and 1 <= c <= last and maze[r][c] == WALL]


def entrances(side: int, rng: np.random.Generator) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return entrance and exit of a maze, (row, column) each, in the walls of opposite sides."""
    edge = int(rng.integers(4))  # north, south, west, east
    start, end = (1 + 2 * int(rng.integers(side // 2)) for _ in range(2))
    near, far = (0, side - 1) if edge in (0, 2) else (side - 1, 0)
    return ((near, start), (far, end)) if edge < 2 else ((start, near), (end, far))


class PositionOnlyPendulumVectorEnv(Pendulum):
    """Pendulum with observation float32 [2] = (cosine, sine of the angle).

    ``noise`` is the standard deviation of the normal noise on both numbers, clipped to [-1, 1]; 0:
    none. The reward is Pendulum's, mapped from its bounds to [-1, 1], divided by ``steps``.
    Truncated after ``steps`` steps; the best return is below 1 by the cost of the swing up.
    """

    steps: int = integer(200, 1)
    noise: float = number(0.0, 0)

    def _setup(self) -> Spaces:
        _, action = super()._setup()
        self.error = np.zeros((self.num_envs, 2), np.float32)  # of the newest observation
        return spaces.Box(-1, 1, (2,), np.float32), action

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        super()._begin(i, rng)
        self.limit[i] = self.steps
        self._draw_noise([i])

    def _draw_noise(self, columns: Iterable[int]) -> None:
        for i in columns if self.noise > 0 else ():
            self.error[i] = self.rngs[i].normal(0, self.noise, 2)

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        reward = (LOWEST / 2 - self._swing(action)) / (LOWEST / 2) / self.steps
        self._draw_noise(np.flatnonzero(~self._done))  # a column that resets samples at its reset
        return reward.astype(np.float32), np.zeros(self.num_envs, np.bool_)

    def _observe(self) -> np.ndarray:
        obs = super()._observe()[:, :2]
        return np.clip(obs + self.error, -1, 1) if self.noise > 0 else obs

    def _full_state(self) -> np.ndarray:
        return super()._observe()
