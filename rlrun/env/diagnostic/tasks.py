"""Small tasks with known solutions, for diagnosis of rows, exploration, actions and teams."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from rlrun.env.diagnostic.vector import (
    NO_LIMIT,
    LockstepVectorEnv,
    Spaces,
    choice,
    flag,
    integer,
    integers,
    number,
    require_int,
)
from rlrun.functional.masks import MASK
from rlrun.spaces import JointSpace, Tree

SMALL_REWARD, LARGE_REWARD = 0.001, 1.0  # at the chain's ends
EXTRA_STEPS = 9  # env steps of an episode beyond the chain's length
PAYOFF = np.array([[0, 1], [1, 8]], np.float32)  # of the two-step game's second step in state 2B
UNKNOWN = 0  # of a cell in the observation of a board


def counter_reward(index: np.ndarray, episode: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Return the reward of step t: (t + 1) + (episode mod 4) / 4 + (index mod 4) / 16, float32."""
    return np.asarray(t + 1 + episode % 4 / 4 + index % 4 / 16, np.float32)


class CounterVectorEnv(LockstepVectorEnv):
    """Observation float32 [3] = (env index, episode number, t within the episode), exactly.

    Episode e of environment i has ``lengths[(i + e) mod len]`` steps, or with ``random`` a number
    uniform in [min(lengths), max(lengths)]. ``end`` is the kind of end; ``alternate``: terminated
    if i + e is even, truncated if it is odd. Actions have no effect.
    """

    lengths: Sequence[int] = integers((5,), 1)
    random: bool = flag(False)
    end: str = choice("terminated", "truncated", "alternate")

    def _setup(self) -> Spaces:
        self.steps = np.array(self.lengths, np.int64)  # of episodes, in turn
        self.final = np.full(self.num_envs, NO_LIMIT)  # steps after which an episode is terminated
        return spaces.Box(0, np.inf, (3,), np.float32), spaces.Discrete(2)

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        number = self.index[i] + self.episode[i]
        length = self.steps[number % len(self.steps)]
        if self.random:
            length = rng.integers(self.steps.min(), self.steps.max(), endpoint=True)
        end = ("terminated", "truncated")[number % 2] if self.end == "alternate" else self.end
        self.final[i], self.limit[i] = NO_LIMIT, NO_LIMIT
        (self.final if end == "terminated" else self.limit)[i] = length

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return counter_reward(self.index, self.episode, self.t), self.t + 1 >= self.final

    def _observe(self) -> np.ndarray:
        return np.stack((self.index, self.episode, self.t), axis=1).astype(np.float32)


class BanditVectorEnv(LockstepVectorEnv):
    """Two arms, one step per episode, a constant observation: reward 1 for arm 1, 0 for arm 0.

    With probability ``noise`` they are swapped: mean return of arm 1 1 - noise, of random ones 0.5.
    """

    noise: float = number(0.0, 0, 1)

    def _setup(self) -> Spaces:
        self.swapped = np.zeros(self.num_envs, np.bool_)
        return spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        if self.noise > 0:
            self.swapped[i] = rng.random() < self.noise

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rewarded = (action == 1) ^ self.swapped
        return rewarded.astype(np.float32), np.ones(self.num_envs, np.bool_)

    def _observe(self) -> np.ndarray:
        return np.ones((self.num_envs, 1), np.float32)


class IdentityVectorEnv(LockstepVectorEnv):
    """Observation a symbol in 0..n-1, sampled each step. Reward 1 for the same action, else 0.

    Truncated after ``length`` steps: return of an oracle ``length``, of random actions length / n.
    """

    n: int = integer(4, 2)
    length: int = integer(10, 1)

    def _setup(self) -> Spaces:
        self.symbols = np.zeros((self.num_envs, self.length + 1), np.int64)
        return spaces.Discrete(self.n), spaces.Discrete(self.n)

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        self.symbols[i] = rng.integers(self.n, size=self.length + 1)
        self.limit[i] = self.length

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        correct = action == self.symbols[self.columns, self.t]
        return correct.astype(np.float32), np.zeros(self.num_envs, np.bool_)

    def _observe(self) -> np.ndarray:
        symbol: np.ndarray = self.symbols[self.columns, self.t]
        return symbol


class BitFlipVectorEnv(LockstepVectorEnv):
    """A state and a goal of ``bits`` bits, sampled for every episode; action i flips bit i.

    Observation: dict of ``observation`` and ``achieved_goal`` (both the state) and
    ``desired_goal``, int8 [bits] each. Reward 0 for the step that reaches the goal and ends the
    episode, -1 for every other. Truncated after ``bits`` steps, the number that the farthest goal
    needs. ``info["is_success"]`` of an episode's last step is True if the goal was reached.

    Goals that equal the initial state are resampled. Return of an oracle: 1 - d for a goal d bits
    away, 1 - bits/2 · 2^bits/(2^bits - 1) on average. Return without success: -bits.

    Source: Andrychowicz et al. 2017, section 3.1 (the task; its episodes continue at the goal).
    """

    bits: int = integer(16, 1)

    def _setup(self) -> Spaces:
        self.state = np.zeros((self.num_envs, self.bits), np.int8)
        self.goal = np.zeros((self.num_envs, self.bits), np.int8)
        self.success = np.zeros(self.num_envs, np.bool_)
        keys = ("achieved_goal", "desired_goal", "observation")
        observation = spaces.Dict({key: spaces.MultiBinary(self.bits) for key in keys})
        return observation, spaces.Discrete(self.bits)

    @staticmethod
    def compute_reward(
        achieved_goal: np.ndarray, desired_goal: np.ndarray, info: object
    ) -> np.ndarray:
        """Return float32 [*]: 0 where the goals [*, bits] are equal, -1 elsewhere."""
        equal = BitFlipVectorEnv.compute_terminated(achieved_goal, desired_goal, info)
        return np.where(equal, np.float32(0), np.float32(-1))

    @staticmethod
    def compute_terminated(
        achieved_goal: np.ndarray, desired_goal: np.ndarray, info: object
    ) -> np.ndarray:
        """Return bool [*]: True where the goals [*, bits] are equal."""
        equal: np.ndarray = np.equal(achieved_goal, desired_goal).all(axis=-1)
        return equal

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        self.state[i], self.goal[i] = rng.integers(2, size=(2, self.bits), dtype=np.int8)
        while (self.state[i] == self.goal[i]).all():
            self.goal[i] = rng.integers(2, size=self.bits, dtype=np.int8)
        self.limit[i] = self.bits

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.state[self.columns, action] ^= 1
        self.success = self.compute_terminated(self.state, self.goal, {})
        return self.compute_reward(self.state, self.goal, {}), self.success.copy()

    def _observe(self) -> dict[str, np.ndarray]:
        parts = (self.state, self.goal, self.state)
        keys = self.single_observation_space.spaces  # type: ignore[attr-defined]
        return {key: part.copy() for key, part in zip(keys, parts, strict=True)}


class ChainVectorEnv(LockstepVectorEnv):
    """States 1 to N in a row; one action moves up, the others down, within the range.

    An episode starts in state 2 and is truncated after N + 9 steps. The reward of a step is 1/1000
    if it ends in state 1, 1 if it ends in state N, else 0. Best return 12 (N - 2 steps to state N,
    then 11 more); (N + 9)/1000 for always moving down. Two actions chosen uniformly reach state N
    in one of 1650 episodes for N = 20, in one of 10^8 for N = 40. Observation float32 [N], the
    "thermometer" code: 1 at the positions up to the state, else 0.

    ``pattern`` seeds the choice of the action that moves up in each state. Without it (null: action
    1 everywhere) a network that happens to prefer action 1 reaches the end without exploration. The
    pattern is the same in all columns and episodes and independent of the environment's seed.

    Source: Osband et al. 2016, section 5; the pattern: Osband et al. 2020 (bsuite, deep sea).
    """

    length: int = integer(20, 3)
    pattern: int | None = integer(0, 0, optional=True)
    actions: int = integer(2, 2)

    def _setup(self) -> Spaces:
        sampled = np.random.default_rng(self.pattern).integers(self.actions, size=self.length)
        ones = np.ones(self.length, np.int64)
        self.up = ones if self.pattern is None else sampled  # action that moves up
        self.state = np.zeros(self.num_envs, np.int64)  # 0 to N - 1
        return spaces.Box(0, 1, (self.length,), np.float32), spaces.Discrete(self.actions)

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        self.state[i], self.limit[i] = 1, self.length + EXTRA_STEPS

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        move = np.where(action == self.up[self.state], 1, -1)
        self.state = np.clip(self.state + move, 0, self.length - 1)
        reward = np.where(self.state == 0, SMALL_REWARD, 0.0)
        reward[self.state == self.length - 1] = LARGE_REWARD
        return reward.astype(np.float32), np.zeros(self.num_envs, np.bool_)

    def _observe(self) -> np.ndarray:
        return (np.arange(self.length) <= self.state[:, None]).astype(np.float32)


class BanditContinuousVectorEnv(LockstepVectorEnv):
    """One step per episode, a constant observation: reward -mean((action - target)^2).

    Actions [dims] lie within [low, high], which need not be centred at 0 or at the target, so a
    policy with wrongly scaled actions fails. Best return 0; of uniform actions -((high - low)^2 /
    12 + (centre - target)^2).
    """

    target: float = number(1.2)
    low: float = number(-1.0)
    high: float = number(2.0)
    dims: int = integer(1, 1)

    def _setup(self) -> Spaces:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low}: must be below high (= {self.high})")
        if not self.low <= self.target <= self.high:
            raise ValueError(f"target = {self.target}: must be within [{self.low}, {self.high}]")
        action = spaces.Box(self.low, self.high, (self.dims,), np.float32)
        return spaces.Box(0, 1, (1,), np.float32), action

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        reward = -np.square(action - self.target).mean(axis=1)
        return reward.astype(np.float32), np.ones(self.num_envs, np.bool_)

    def _observe(self) -> np.ndarray:
        return np.ones((self.num_envs, 1), np.float32)


class TrackingVectorEnv(LockstepVectorEnv):
    """Reproduce the observation of ``lag`` steps ago; observations float32 [1] uniform in [-1, 1].

    The action [1] lies within [-2, 2]; the reward is -(action - obs[t - lag])^2, 0 in the first
    ``lag`` steps. Episodes are truncated after ``length`` steps. Best return 0; of uniform actions
    -(length - lag) * (4/3 + 1/3); of action 0 (the best without memory for ``lag`` > 0)
    -(length - lag) / 3.
    """

    length: int = integer(10, 1)
    lag: int = integer(0, 0)

    def _setup(self) -> Spaces:
        require_int("lag", self.lag, 0, self.length - 1)
        self.symbols = np.zeros((self.num_envs, self.length + 1), np.float32)
        return spaces.Box(-1, 1, (1,), np.float32), spaces.Box(-2, 2, (1,), np.float32)

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        self.symbols[i] = rng.uniform(-1, 1, self.length + 1)
        self.limit[i] = self.length

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        past = self.t - self.lag  # negative in the first lag steps
        target = self.symbols[self.columns, np.maximum(past, 0)]
        reward = np.where(past < 0, 0.0, -np.square(action[:, 0] - target))
        return reward.astype(np.float32), np.zeros(self.num_envs, np.bool_)

    def _observe(self) -> np.ndarray:
        return self.symbols[self.columns, self.t][:, None]


class TwoStepVectorEnv(LockstepVectorEnv):
    """Two agents, two actions, two steps: return 7 in one branch, 8 with coordination in the other.

    In the first state the first agent's action decides: A leads to state 2A, where every joint
    action is worth 7, B to state 2B, where (A, A) is worth 0, (B, B) 8 and any other 1. Both agents
    observe the index of the state, which is also the global state (one-hot). A sum of one value per
    agent cannot represent the payoffs of 2B: under full exploration it fits 6.5 at best and
    prefers 2A.
    Source: Rashid et al. 2018, section 5 and table 1.
    """

    def _setup(self) -> Spaces:
        self.state = np.zeros(self.num_envs, np.int64)  # 0: first, 1: 2A, 2: 2B
        state = spaces.Box(0, 1, (3,), np.float32)
        return JointSpace(spaces.Discrete(3), state, num_agents=2), spaces.MultiDiscrete([2, 2])

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        self.state[i] = 0

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        second = self.state > 0
        reward = np.where(self.state == 1, np.float32(7), PAYOFF[action[:, 0], action[:, 1]])
        self.state = np.where(second, self.state, 1 + action[:, 0])
        return np.where(second, reward, np.float32(0)), second

    def _observe(self) -> Tree:
        return joint_obs(np.stack([self.state] * 2, 1), np.eye(3, dtype=np.float32)[self.state])


class RelayVectorEnv(LockstepVectorEnv):
    """Both agents must recall a cue that only the first one observes, at the start.

    At t = 0 the first agent observes the cue, one of ``cues``. Its action is a message that the
    second agent observes at t = 1, the only communication. After ``delay`` more blank steps both
    observe a question. Reward 1/2 if the message equals the cue, 1/4 for each agent that answers
    the question with the cue. Return: 1 at best, 1 / cues for random agents, 1/2 + 1 / (2 cues) at
    best without memory.

    Observations are symbols: 0 to cues - 1 a cue or message, ``cues`` blank, cues + 1 the question.
    The global state is both symbols, one-hot. It contains the cue only while it is observed:
    otherwise a mixer could learn to ignore an agent where it is wrong.
    """

    cues: int = integer(2, 2)
    delay: int = integer(1, 0)

    def _setup(self) -> Spaces:
        self.length = self.delay + 3  # steps: cue, message, delay, question
        self.symbols = np.eye(self.cues + 2, dtype=np.float32)
        self.cue, self.message = (np.zeros(self.num_envs, np.int64) for _ in range(2))
        state = spaces.Box(0, 1, (2 * (self.cues + 2),), np.float32)
        observation = JointSpace(spaces.Discrete(self.cues + 2), state, num_agents=2)
        return observation, spaces.MultiDiscrete([self.cues, self.cues])

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        self.cue[i] = rng.integers(self.cues)

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        last = self.t == self.length - 1
        self.message = np.where(self.t == 0, action[:, 0], self.message)
        correct = action == self.cue[:, None]
        sent = np.where(self.t == 0, 0.5 * correct[:, 0], 0)
        return (sent + np.where(last, 0.25 * correct.sum(1), 0)).astype(np.float32), last

    def _observe(self) -> Tree:
        obs = np.full((self.num_envs, 2), self.cues)
        obs[self.t == self.length - 1] = self.cues + 1
        obs[:, 0] = np.where(self.t == 0, self.cue, obs[:, 0])
        obs[:, 1] = np.where(self.t == 1, self.message, obs[:, 1])
        return joint_obs(obs, self.symbols[obs].reshape(self.num_envs, -1))


def joint_obs(agents: np.ndarray, state: np.ndarray) -> Tree:
    """Return the joint observation of environments whose agents [E, N] are all alive."""
    return {"agents": agents, "alive": np.ones(agents.shape, np.int8), "state": state}


class CellsVectorEnv(LockstepVectorEnv):
    """Base class of boards of ``size`` x ``size`` cells. Action i uncovers cell i.

    Observation: dict of ``board``, int8 [size^2], 0 for an unknown cell, else 1 + its content, and
    ``action_mask``, int8 [size^2], 1 for a cell that was not chosen in this episode. ``show``:
    ``board``, all that is known of the board, or ``last``, only the cell uncovered last, so that
    the rest must be remembered. ``mask=False`` leaves ``action_mask`` out.

    Choosing a cell again has no effect and reward -``penalty``, or with ``strict`` raises
    ValueError. Truncated after size^2 steps.
    """

    contents: int  # of a cell, 0 to contents - 1

    size: int = integer(4, 2, 30)
    show: str = choice("board", "last")
    mask: bool = flag(True)
    strict: bool = flag(False)
    penalty: float = number(0.1)

    def _setup(self) -> Spaces:
        self.cells = self.size**2
        self.content = np.zeros((self.num_envs, self.cells), np.int8)
        self.open = np.zeros((self.num_envs, self.cells), np.bool_)  # chosen in this episode
        self.last = np.zeros(self.num_envs, np.int64)  # cell uncovered last
        self.shown = np.zeros(self.num_envs, np.bool_)  # whether the last step uncovered one
        parts: dict[str, Any] = {"board": spaces.Box(0, self.contents, (self.cells,), np.int8)}
        if self.mask:
            parts = {MASK: spaces.MultiBinary(self.cells), **parts}
        return spaces.Dict(parts), spaces.Discrete(self.cells)

    def _fill(self, rng: np.random.Generator) -> np.ndarray:
        """Return the contents [cells] of a new board."""
        raise NotImplementedError

    def _pay(self, content: np.ndarray) -> np.ndarray:
        """Return the reward [E] of uncovering cells of this content [E]."""
        raise NotImplementedError

    def _over(self) -> np.ndarray:
        """Return bool [E]: boards that are finished."""
        raise NotImplementedError

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        self.content[i] = self._fill(rng)
        self.open[i] = self.shown[i] = False
        self.limit[i] = self.cells

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


def count_parts(ships: Sequence[int], size: int) -> int:
    """Return the cells of ships on a board of ``size``^2. Raises: ValueError if they are many."""
    for length in ships:
        require_int("ships", length, 1, size)
    parts = int(sum(ships))
    if 2 * parts > size**2:
        allowed = f"must cover at most half of the {size**2} cells"
        raise ValueError(f"ships = {list(ships)}: {allowed}")
    return parts


def count_around(mine: np.ndarray) -> np.ndarray:
    """Return the number of mines in the 3 x 3 cells around each cell of a board [n, n]."""
    padded, n = np.pad(mine, 1), len(mine)
    around: Any = sum(padded[i : i + n, j : j + n] for i in range(3) for j in range(3))
    return np.asarray(around)


class BattleshipVectorEnv(CellsVectorEnv):
    """Hit ships of the given lengths, which lie in rows or columns of the board without overlap.

    Content 1: a part of a ship. A hit pays 1 / (parts of ships), a miss costs 1 / (cells of water);
    the last hit ends the episode. Best return 1. Shots at random cells, none twice, return 1 /
    (parts + 1) on average: parts / (parts + 1) of the water is hit before the last part of a ship.
    """

    contents = 2

    ships: Sequence[int] = integers((3, 2), 1)

    def _setup(self) -> Spaces:
        self.parts = count_parts(self.ships, self.size)
        return super()._setup()

    def _fill(self, rng: np.random.Generator) -> np.ndarray:
        while True:  # place all again if a ship fits nowhere
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
    """Uncover all cells without a mine. They show the number of the ``mines`` around them.

    A safe cell pays 1 / (safe cells). A mine (content 9) pays nothing and ends the episode, as the
    last safe cell does. Best return 1; random cells, none twice, return 1 / (mines + 1) on average.
    """

    contents = 10

    mines: int = integer(2, 1)

    def _setup(self) -> Spaces:
        require_int("mines", self.mines, 1, self.size**2 - 1)
        return super()._setup()

    def _fill(self, rng: np.random.Generator) -> np.ndarray:
        mine = np.zeros(self.cells, np.int8)
        mine[rng.permutation(self.cells)[: self.mines]] = 1
        around = count_around(mine.reshape(self.size, self.size)).ravel()
        return np.where(mine == 1, 9, around).astype(np.int8)

    def _pay(self, content: np.ndarray) -> np.ndarray:
        return np.where(content == 9, 0.0, 1 / (self.cells - self.mines))

    def _over(self) -> np.ndarray:
        mine = self.content == 9
        over: np.ndarray = (self.open & mine).any(axis=1) | (self.open | mine).all(axis=1)
        return over
