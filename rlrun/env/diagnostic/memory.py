"""Tasks that need memory: POPGym's, bsuite's memory chain, a T-maze, CartPole's positions.

Rules, rewards and lengths of POPGym's tasks are those of popgym 1.0.7 (Morad et al., ICLR 2023).
One seed gives the same rows in both; env/README.md has the arguments of its levels.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.vector.utils import batch_space

from rlrun.env.contract import ResetResult, VectorResult
from rlrun.env.diagnostic.vector import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    RED,
    LockstepVectorEnv,
    Spaces,
    canvas,
    choice,
    fill,
    flag,
    integer,
    number,
    require_int,
)

SUITS, RANKS, DECK = 4, 13, 52
KINDS = {"colors": 2, "suits": SUITS, "ranks": RANKS}  # kind of a card -> number of values
FORWARD, LEFT, RIGHT = range(3)  # actions of the T-maze
SYMBOLS = np.eye(4, dtype=np.float32)  # its observations
GRAVITY, FORCE, SECONDS = 9.8, 10.0, 0.02  # CartPole's constants (Barto, Sutton & Anderson 1983)
POLE, HALF_LENGTH = 0.1, 0.5  # mass in kg, half the pole in m
MASS, MOMENT = POLE + 1.0, POLE * HALF_LENGTH
FARTHEST, STEEPEST = 2.4, 12 * 2 * math.pi / 360  # m, rad: beyond them an episode terminates


def kinds_of(deck: np.ndarray, kind: str) -> np.ndarray:
    """Return the color, suit or rank of each card, as an integer from 0."""
    return deck % DECK // SUITS if kind == "ranks" else deck % KINDS[kind]


class CardsVectorEnv(LockstepVectorEnv):
    """Base class of card tasks with shuffled decks, ``cards`` [E, 52 decks] in the order dealt.

    A policy names suits. It observes that of the newest card, and ``_asked`` returns the right one.
    """

    decks: int = integer(1, 1)
    answers = SUITS  # number of actions

    def _setup(self) -> Spaces:
        self.size = DECK * self.decks
        self.cards = np.zeros((self.num_envs, self.size), np.int64)
        self.scored, self.length = self.size - 1, self.size - 1  # steps: with a reward, all
        return spaces.Discrete(SUITS), spaces.Discrete(SUITS)

    def _deal(self, rng: np.random.Generator) -> np.ndarray:
        """Return a shuffled deck. POPGym deals from its end."""
        deck = np.arange(self.size)
        rng.shuffle(deck)
        return deck[::-1]

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        self.cards[i] = self._deal(rng)

    def _asked(self) -> tuple[np.ndarray, np.ndarray | bool]:
        """Return (the right action at ``t`` [E], whether it is asked for [E])."""
        raise NotImplementedError

    def _score(self, correct: np.ndarray) -> np.ndarray:
        """Return +1 / ``scored`` where correct, else minus the same, float32 [E]."""
        return np.where(correct, 1 / self.scored, -1 / self.scored).astype(np.float32)

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        answer, asked = self._asked()
        return self._score(action == answer) * asked, self.t + 1 >= self.length

    def _observe(self) -> np.ndarray:
        suit: np.ndarray = self.cards[self.columns, self.t] % SUITS
        return suit

    def _full_state(self) -> np.ndarray:
        """Return the right action, one-hot, or zeros if none is asked for."""
        answer, asked = self._asked()
        state: np.ndarray = np.eye(self.answers, dtype=np.float32)[answer]
        return np.where(np.reshape(asked, (-1, 1)), state, np.float32(0))


class RepeatPreviousVectorEnv(CardsVectorEnv):
    """Name the suit of the card observed k - 1 steps ago.

    A shuffled deck is revealed card by card; the observation is the suit of the newest card. Once k
    cards are revealed, the action must name the suit of the k-th newest (k = 4: the card observed 3
    steps ago). Reward +1 / (52 decks - k) if correct, minus the same if not, 0 before k cards are
    revealed. The episode terminates with the last card, after 52 decks - 1 steps, 52 decks - k of
    them scored. Return of an oracle 1, of random actions -0.5, of the best memoryless policy (a
    suit other than the observed one) 2 * 13/51 - 1 = -0.490.
    """

    k: int = integer(4, 1)

    def _setup(self) -> Spaces:
        both = super()._setup()
        require_int("k", self.k, 1, self.size - 1)
        self.scored = self.size - self.k
        return both

    def _asked(self) -> tuple[np.ndarray, np.ndarray]:
        past = self.t + 1 - self.k  # negative while fewer than k cards are revealed
        return self.cards[self.columns, np.maximum(past, 0)] % SUITS, past >= 0


class RepeatFirstVectorEnv(CardsVectorEnv):
    """Name the suit of the first card in every step.

    The observation is the suit of the newest card. Reward +1 / (52 decks - 1) for the suit of the
    episode's first card, minus the same for another. Terminates with the last card, after 52 decks
    - 1 steps. Return of an oracle 1, of random actions -0.5.
    """

    def _asked(self) -> tuple[np.ndarray, bool]:
        return self.cards[:, 0] % SUITS, True


class CountRecallVectorEnv(CardsVectorEnv):
    """Say how many cards of the asked kind were dealt so far, including the newest.

    Observation int64 [2]: the kind of the newest card, and the asked kind, which is that of a card
    of a second deck. ``kind``: "colors", "suits" or "ranks". Reward +1 / (52 decks - 1) for the
    exact number, minus the same for another. Terminates with the last card, after 52 decks - 1
    steps. Return of an oracle 1.
    """

    kind: str = choice("colors", "suits", "ranks")

    def _setup(self) -> Spaces:
        super()._setup()
        self.queries = np.zeros_like(self.cards)
        self.answers = self.size // KINDS[self.kind] + 1
        return spaces.MultiDiscrete([KINDS[self.kind]] * 2), spaces.Discrete(self.answers)

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        self.cards[i] = kinds_of(self._deal(rng), self.kind)
        self.queries[i] = kinds_of(self._deal(rng), self.kind)

    def _asked(self) -> tuple[np.ndarray, bool]:
        dealt = np.arange(self.size) <= self.t[:, None]
        query = self.queries[self.columns, self.t]
        return (dealt & (self.cards == query[:, None])).sum(1), True

    def _observe(self) -> np.ndarray:
        newest, query = (x[self.columns, self.t] for x in (self.cards, self.queries))
        return np.stack([newest, query], 1)


class AutoencodeVectorEnv(CardsVectorEnv):
    """Watch a deck, then name the suits of its cards in reverse order.

    Observation int64 [2]: 1 while more cards follow, 0 from the last card on; the suit of the
    newest card, 0 once naming has begun. Actions count from the last card on: reward
    +1 / (52 decks) for the right suit, minus the same for another. Terminates after
    2 * 52 decks - 1 steps. Return of an oracle 1, of random actions -0.5.
    """

    def _setup(self) -> Spaces:
        _, action = super()._setup()
        self.scored, self.length = self.size, 2 * self.size - 1
        return spaces.MultiDiscrete([2, SUITS]), action

    def _asked(self) -> tuple[np.ndarray, np.ndarray]:
        named = self.t - (self.size - 1)
        card = np.clip(self.size - 1 - named, 0, self.size - 1)
        return self.cards[self.columns, card] % SUITS, named >= 0

    def _observe(self) -> np.ndarray:
        shown = self.t < self.size
        suit = self.cards[self.columns, np.minimum(self.t, self.size - 1)] % SUITS
        return np.stack([(self.t < self.size - 1).astype(np.int64), suit * shown], 1)


class HigherLowerVectorEnv(CardsVectorEnv):
    """Guess whether the next card is higher (action 0) or lower (action 1) than the newest one.

    The observation is the rank of the newest card. Reward +1 / (52 decks) for a right guess, minus
    the same for a wrong one, 0 for equal ranks. Terminates with the last card, after 52 decks - 1
    steps. Counting the cards improves the guesses at the end of the deck. The best guess from the
    newest card alone returns 0.497 on average.
    """

    def _setup(self) -> Spaces:
        super()._setup()
        self.scored = self.size
        return spaces.Discrete(RANKS), spaces.Discrete(2)

    def _rank(self, t: np.ndarray) -> np.ndarray:
        return kinds_of(self.cards[self.columns, np.minimum(t, self.size - 1)], "ranks")

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        change = self._rank(self.t + 1) - self._rank(self.t)
        reward = self._score((change > 0) == (action == 0)) * (change != 0)
        return reward, self.t + 1 >= self.length

    def _observe(self) -> np.ndarray:
        return self._rank(self.t)

    def _full_state(self) -> np.ndarray:
        """Return the newest rank, one-hot, and the share of each rank that is still in the deck."""
        ranks = np.eye(RANKS, dtype=np.float32)
        left = (np.arange(self.size) > self.t[:, None]).astype(np.float32)
        counts = np.einsum("ec,ecr->er", left, ranks[kinds_of(self.cards, "ranks")])
        shares = counts / (self.size / RANKS)
        return np.concatenate([ranks[self._rank(self.t)], shares], 1).astype(np.float32)


class MultiarmedBanditVectorEnv(LockstepVectorEnv):
    """Find the arm that pays most often.

    Every episode samples the probability of each of ``arms`` arms uniformly. The observation is 1
    if the last action was paid, else 0, so the agent must know that action
    (``policy.prev_inputs``). Reward +1 / ``steps`` if paid, minus the same if not. Truncated after
    ``steps`` steps. Return of the best arm 2 * arms / (arms + 1) - 1 on average, of random actions
    0.
    """

    arms: int = integer(10, 2)
    steps: int = integer(200, 1)

    def _setup(self) -> Spaces:
        self.chances = np.zeros((self.num_envs, self.arms), np.float32)
        self.paid = np.zeros(self.num_envs, np.int64)
        return spaces.Discrete(2), spaces.Discrete(self.arms)

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        self.chances[i] = rng.random(self.arms, dtype=np.float32)
        self.paid[i], self.limit[i] = 0, self.steps

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        chance = self.chances[self.columns, action]
        for i in np.flatnonzero(~self._done):  # a column that resets samples at its reset
            self.paid[i] = self.rngs[i].random() < chance[i]
        reward = np.where(self.paid == 1, 1 / self.steps, -1 / self.steps).astype(np.float32)
        return reward, np.zeros(self.num_envs, np.bool_)

    def _observe(self) -> np.ndarray:
        return self.paid.copy()

    def _full_state(self) -> np.ndarray:
        return self.chances.copy()


class MemoryChainVectorEnv(LockstepVectorEnv):
    """Remember ``bits`` random bits for ``length`` steps, then name the asked one.

    Observation float32 [2 + bits]: the share of the time left, the number of the asked bit (in the
    last but one observation, else 0), and the bits as -1 and 1 (in the first two, else 0). An
    episode has ``length`` + 1 steps. Only its last action counts, with reward +1 for the right bit
    and -1 for the other. Return of an oracle 1, without memory 0 on average.

    ``bits`` 1 with ``length`` 1 to 100 is bsuite's memory_len, ``length`` 2 with ``bits`` 1 to 40
    its memory_size. The rows are bsuite's, with its clock, which starts with the first step.
    Source: Osband et al. 2020, "Behaviour suite for reinforcement learning", section 3.4.
    """

    length: int = integer(10, 1)
    bits: int = integer(1, 1)

    def _setup(self) -> Spaces:
        self.context = np.zeros((self.num_envs, self.bits), np.int64)
        self.query = np.zeros(self.num_envs, np.int64)
        low = np.array([0, 0, *[-1] * self.bits], np.float32)
        high = np.array([1, max(self.bits - 1, 1), *[1] * self.bits], np.float32)
        return spaces.Box(low, high), spaces.Discrete(2)

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        self.context[i] = rng.integers(2, size=self.bits)
        self.query[i] = rng.integers(self.bits)

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        last = self.t >= self.length
        correct = action == self.context[self.columns, self.query]
        return (np.where(correct, 1.0, -1.0) * last).astype(np.float32), last

    def _observe(self) -> np.ndarray:
        clock = np.maximum(self.t - 1, 0)
        obs = np.zeros((self.num_envs, 2 + self.bits), np.float32)
        obs[:, 0] = 1 - clock / self.length
        obs[:, 1] = self.query * (clock == self.length - 1)
        obs[:, 2:] = (2 * self.context - 1) * (clock == 0)[:, None]
        return obs

    def _full_state(self) -> np.ndarray:
        return np.eye(2, dtype=np.float32)[self.context[self.columns, self.query]]


class TMazeVectorEnv(LockstepVectorEnv):
    """A T-maze: turn at the junction to the side of a cue that is observed at t = 0 only.

    Observation float32 [4], one-hot: cue "left", cue "right" (t = 0 only), corridor, junction.
    ``length`` forward moves lead to the junction. A turn to the side of the cue has reward +1, to
    the other side -0.1; both end the episode. Every move without progress (a turn in the corridor,
    forward at the junction) has reward -``penalty``. Truncated after 4 * ``length`` steps.
    ``info["is_success"]`` of an episode's last step is True for a turn to the side of the cue.

    Nothing after t = 0 depends on the cue: corridor cells look alike, and the cue is observed at t
    = 0 only, even if the agent does not move. Only 'forward' enters the junction, with reward 0, so
    that the previous action and reward observed there are the same in every episode. A fourth
    action ('back') would only be one more move without progress.

    ``balanced``: the cue is (env index + episode number) mod 2 instead of random, so that the cues
    of an even number of episodes per environment (or of environments) are balanced exactly.

    Source: Bakker 2002 (the task); penalty, limit and wrong-turn reward are rlrun's own.
    """

    length: int = integer(10, 1)
    penalty: float = number(0.02, 0)
    balanced: bool = flag(False)

    def _setup(self) -> Spaces:
        self.cue = np.zeros(self.num_envs, np.int64)  # 0: left, 1: right
        self.cell = np.zeros(self.num_envs, np.int64)
        self.success = np.zeros(self.num_envs, np.bool_)
        return spaces.Box(0, 1, (4,), np.float32), spaces.Discrete(3)

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        balanced = (self.index[i] + self.episode[i]) % 2
        self.cue[i] = balanced if self.balanced else rng.integers(2)
        self.cell[i], self.limit[i] = 0, 4 * self.length

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        forward = action == FORWARD
        junction = self.cell == self.length
        turns = junction & ~forward
        moves = forward & ~junction
        self.success = turns & (action == self.cue + LEFT)
        self.cell += moves
        reward = np.full(self.num_envs, -self.penalty, np.float32)
        reward[moves], reward[turns], reward[self.success] = 0, -0.1, 1
        return reward, turns

    def _observe(self) -> np.ndarray:
        symbol = 2 + (self.cell == self.length)
        obs: np.ndarray = SYMBOLS[np.where(self.t == 0, self.cue, symbol)]
        return obs

    def _full_state(self) -> np.ndarray:
        """Return the cue, and whether the agent is in the corridor or at the junction."""
        state: np.ndarray = SYMBOLS[self.cue] + SYMBOLS[2 + (self.cell == self.length)]
        return state

    def picture(self, column: int) -> np.ndarray:
        """Return the maze from above: rewarded side green, other side red, agent blue.

        The first cell shows the cue while it is observed. After a turn the agent is on its side.
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


class CartPoleNoVelVectorEnv(CartPoleVectorEnv):
    """CartPole with observation float32 [2] = (cart position in m, pole angle in rad).

    The velocities have to be inferred from two observations. Reward 1 per step. Terminated when the
    pole or the cart leaves its range, truncated after ``max_episode_steps`` (registered with 500).
    """

    render_fps = 50

    def __init__(self, num_envs: int = 1, *, max_episode_steps: int | None = None) -> None:
        limit = np.iinfo(np.int32).max if max_episode_steps is None else max_episode_steps
        super().__init__(num_envs, max_episode_steps=limit)
        full = self.single_observation_space
        assert isinstance(full, spaces.Box)
        self.single_observation_space = spaces.Box(full.low[::2], full.high[::2])
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def reset(self, *, seed: int | None = None, options: Any = None) -> ResetResult:
        obs, info = super().reset(seed=seed)
        return np.ascontiguousarray(obs[:, ::2]), info

    def step(self, actions: np.ndarray) -> VectorResult:
        obs, reward, terminated, truncated, info = super().step(actions)
        return np.ascontiguousarray(obs[:, ::2]), reward, terminated, truncated, info

    def picture(self, column: int) -> np.ndarray:
        """Return Gymnasium's picture of a column, uint8 [H, W, 3]."""
        return cartpole_picture(self, column)


def cartpole_picture(raw: Any, column: int) -> np.ndarray:
    """Return Gymnasium's picture of a column after its last step, uint8 [H, W, 3].

    Gymnasium's vector environment would draw all columns.
    """
    if not hasattr(raw, "drawing"):  # created late, so it is in no saved state
        raw.drawing = CartPoleEnv(render_mode="rgb_array")
    raw.drawing.state = raw.state[:, column]
    image: np.ndarray = raw.drawing.render()
    return image


class PositionOnlyCartPoleVectorEnv(LockstepVectorEnv):
    """CartPole with observation float32 [2] = (cart position in m, pole angle in rad), in float64.

    ``noise`` is the standard deviation of the normal noise on both numbers, clipped to the bounds
    of the space; 0: none. Reward 1 / ``steps`` per step, including an episode's last one.
    Terminated when the pole or the cart leaves its range, truncated after ``steps`` steps: the best
    return is 1. With ``show`` "velocities" the observation is the rates of both numbers, without
    bounds, but at a reset POPGym shows the numbers themselves.

    The physics is that of Gymnasium's single CartPole in float64, operation by operation.
    """

    steps: int = integer(200, 1)
    noise: float = number(0.0, 0)
    show: str = choice("positions", "velocities")

    def _setup(self) -> Spaces:
        farthest, steepest = (FARTHEST, STEEPEST) if self.show == "positions" else (np.inf, np.inf)
        self.bound = np.array([2 * farthest, 2 * steepest], np.float32)
        self.state = np.zeros((self.num_envs, 4))  # position, its rate, angle, its rate
        self.error = np.zeros((self.num_envs, 2), np.float32)  # of the newest observation
        return spaces.Box(-self.bound, self.bound), spaces.Discrete(2)

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        self.state[i], self.limit[i] = rng.uniform(-0.05, 0.05, size=4), self.steps
        self._draw_noise([i])

    def _draw_noise(self, columns: Iterable[int]) -> None:
        for i in columns if self.noise > 0 else ():
            self.error[i] = self.rngs[i].normal(0, self.noise, 2)

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, x_dot, theta, theta_dot = self.state.T
        force = np.where(action == 1, FORCE, -FORCE)
        cosine, sine = np.cos(theta), np.sin(theta)
        push = (force + MOMENT * np.square(theta_dot) * sine) / MASS
        theta_acc = (GRAVITY * sine - cosine * push) / (
            HALF_LENGTH * (4.0 / 3.0 - POLE * np.square(cosine) / MASS)
        )
        x_acc = push - MOMENT * theta_acc * cosine / MASS
        x, theta = x + SECONDS * x_dot, theta + SECONDS * theta_dot
        x_dot, theta_dot = x_dot + SECONDS * x_acc, theta_dot + SECONDS * theta_acc
        self.state = np.stack([x, x_dot, theta, theta_dot], 1)
        self._draw_noise(np.flatnonzero(~self._done))  # a column that resets samples at its reset
        fallen = (np.abs(x) > FARTHEST) | (np.abs(theta) > STEEPEST)
        return np.full(self.num_envs, 1 / self.steps, np.float32), fallen

    def _observe(self) -> np.ndarray:
        obs: np.ndarray = self.state[:, ::2].astype(np.float32)
        if self.show == "velocities":
            obs = np.where((self.t == 0)[:, None], obs, self.state[:, 1::2].astype(np.float32))
        if self.noise > 0:
            obs = np.clip(obs + self.error, -self.bound, self.bound)
        return obs

    def _full_state(self) -> np.ndarray:
        return self.state.astype(np.float32)
