"""POPGym's card games of memory: RepeatFirst, CountRecall, Autoencode, HigherLower.

Rules, rewards and lengths are those of popgym 1.0.7; one seed deals the same cards in both.
Source: Morad et al., ICLR 2023.
"""

from typing import Any

import numpy as np
from gymnasium import spaces

from rlrun.env.diagnostic.vector import LockstepVectorEnv, SingleFromVector, require_int

SUITS, RANKS, DECK = 4, 13, 52
KINDS = {"colors": 2, "suits": SUITS, "ranks": RANKS}  # kind of a card -> number of values


class CardsVectorEnv(LockstepVectorEnv):
    """Shuffled decks, one per column and episode: ``cards`` [E, 52 decks] in the order dealt."""

    def __init__(
        self,
        num_envs: int,
        *,
        decks: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        max_episode_steps: int | None,
        full_state: int | None,
    ) -> None:
        super().__init__(
            num_envs,
            observation_space=observation_space,
            action_space=action_space,
            max_episode_steps=max_episode_steps,
            full_state=full_state,
        )
        self.size = DECK * decks
        self.cards = np.zeros((num_envs, self.size), np.int64)

    def _deal(self, column: int) -> np.ndarray:
        """Return a shuffled deck of the column's generator; POPGym deals from its end."""
        deck = np.arange(self.size)
        self.rngs[column].shuffle(deck)
        return deck[::-1]

    def _reset_columns(self, columns: np.ndarray) -> None:
        for i in columns:
            self.cards[i] = self._deal(i)

    def _score(self, correct: np.ndarray, scored: int) -> np.ndarray:
        """Return +1 / ``scored`` where correct, minus the same elsewhere, float32 [E]."""
        return np.where(correct, 1 / scored, -1 / scored).astype(np.float32)


class RepeatFirstVectorEnv(CardsVectorEnv):
    """Name the suit of the first card in every step.

    The observation is the suit of the newest card. Reward +1 / (52 decks - 1) for the suit of the
    episode's first card, minus the same for another. Terminates with the last card, after
    52 decks - 1 steps. Return of an oracle 1, of random actions -0.5. ``decks`` 1, 8 and 16 are
    POPGym's easy, medium and hard.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        decks: int = 1,
        full_state: bool = False,
        max_episode_steps: int | None = None,
    ) -> None:
        require_int("decks", decks, 1)
        super().__init__(
            num_envs,
            decks=decks,
            observation_space=spaces.Discrete(SUITS),
            action_space=spaces.Discrete(SUITS),
            max_episode_steps=max_episode_steps,
            full_state=SUITS if full_state else None,
        )

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        correct = action == self.cards[:, 0] % SUITS
        return self._score(correct, self.size - 1), self.t + 2 >= self.size

    def _observe(self) -> np.ndarray:
        suit: np.ndarray = self.cards[self.columns, self.t] % SUITS
        return suit

    def _full_state(self) -> np.ndarray:
        return np.eye(SUITS, dtype=np.float32)[self.cards[:, 0] % SUITS]


class CountRecallVectorEnv(CardsVectorEnv):
    """Say how many cards of the asked kind were dealt so far, the newest one included.

    Observation int64 [2]: the kind of the newest card and the kind that is asked for, that of a
    card of a second deck. ``kind``: "colors", "suits" or "ranks". Reward +1 / (52 decks - 1) for
    the exact number, minus the same for another. Terminates with the last card, after
    52 decks - 1 steps. Return of an oracle 1. One deck of colors, two of suits and four of ranks
    are POPGym's easy, medium and hard.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        decks: int = 1,
        kind: str = "colors",
        full_state: bool = False,
        max_episode_steps: int | None = None,
    ) -> None:
        require_int("decks", decks, 1)
        if kind not in KINDS:
            raise ValueError(f"kind = {kind}: must be one of {', '.join(KINDS)}")
        self.kind = kind
        numbers = DECK * decks // KINDS[kind] + 1
        super().__init__(
            num_envs,
            decks=decks,
            observation_space=spaces.MultiDiscrete([KINDS[kind]] * 2),
            action_space=spaces.Discrete(numbers),
            max_episode_steps=max_episode_steps,
            full_state=numbers if full_state else None,
        )
        self.queries = np.zeros_like(self.cards)

    def _reset_columns(self, columns: np.ndarray) -> None:
        for i in columns:
            self.cards[i] = self._kinds(self._deal(i))
            self.queries[i] = self._kinds(self._deal(i))

    def _kinds(self, deck: np.ndarray) -> np.ndarray:
        return deck % DECK // SUITS if self.kind == "ranks" else deck % KINDS[self.kind]

    def _count(self) -> np.ndarray:
        """Return the right answer [E] at ``t``."""
        dealt = np.arange(self.size) <= self.t[:, None]
        query = self.queries[self.columns, self.t]
        count: np.ndarray = (dealt & (self.cards == query[:, None])).sum(1)
        return count

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._score(action == self._count(), self.size - 1), self.t + 2 >= self.size

    def _observe(self) -> np.ndarray:
        newest, query = (x[self.columns, self.t] for x in (self.cards, self.queries))
        return np.stack([newest, query], 1)

    def _full_state(self) -> np.ndarray:
        assert isinstance(self.single_action_space, spaces.Discrete)
        answers = np.eye(int(self.single_action_space.n), dtype=np.float32)
        return np.asarray(answers[self._count()])


class AutoencodeVectorEnv(CardsVectorEnv):
    """Watch a deck, then name the suits of its cards in reverse order.

    Observation int64 [2]: 1 while more cards follow, 0 from the last card on; the suit of the
    newest card, 0 once naming has begun. Actions count from the last card on: reward
    +1 / (52 decks) for the right suit, minus the same for another. Terminates after
    2 * 52 decks - 1 steps. Return of an oracle 1, of random actions -0.5. 1, 2 and 3 decks are
    POPGym's easy, medium and hard.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        decks: int = 1,
        full_state: bool = False,
        max_episode_steps: int | None = None,
    ) -> None:
        require_int("decks", decks, 1)
        super().__init__(
            num_envs,
            decks=decks,
            observation_space=spaces.MultiDiscrete([2, SUITS]),
            action_space=spaces.Discrete(SUITS),
            max_episode_steps=max_episode_steps,
            full_state=SUITS if full_state else None,
        )

    def _answer(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (the suit to name at ``t`` [E], whether it is asked for [E])."""
        named = self.t - (self.size - 1)
        card = np.clip(self.size - 1 - named, 0, self.size - 1)
        return self.cards[self.columns, card] % SUITS, named >= 0

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        suit, asked = self._answer()
        reward = self._score(action == suit, self.size) * asked
        return reward, self.t + 2 >= 2 * self.size

    def _observe(self) -> np.ndarray:
        shown = self.t < self.size
        suit = self.cards[self.columns, np.minimum(self.t, self.size - 1)] % SUITS
        return np.stack([(self.t < self.size - 1).astype(np.int64), suit * shown], 1)

    def _full_state(self) -> np.ndarray:
        suit, asked = self._answer()
        return np.asarray(np.eye(SUITS, dtype=np.float32)[suit] * asked[:, None], np.float32)


class HigherLowerVectorEnv(CardsVectorEnv):
    """Guess whether the next card is higher (action 0) or lower (action 1) than the newest one.

    The observation is the rank of the newest card. Reward +1 / (52 decks) for a right guess, minus
    the same for a wrong one, 0 for equal ranks. Terminates with the last card, after 52 decks - 1
    steps. Whoever counts the cards guesses better at the end of the deck; the best guess from the
    newest card alone returns 0.497 on average. 1, 2 and 3 decks are POPGym's easy, medium and hard.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        decks: int = 1,
        full_state: bool = False,
        max_episode_steps: int | None = None,
    ) -> None:
        require_int("decks", decks, 1)
        super().__init__(
            num_envs,
            decks=decks,
            observation_space=spaces.Discrete(RANKS),
            action_space=spaces.Discrete(2),
            max_episode_steps=max_episode_steps,
            full_state=2 * RANKS if full_state else None,
        )

    def _rank(self, t: np.ndarray) -> np.ndarray:
        rank: np.ndarray = self.cards[self.columns, np.minimum(t, self.size - 1)] % DECK // SUITS
        return rank

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        change = self._rank(self.t + 1) - self._rank(self.t)
        reward = self._score((change > 0) == (action == 0), self.size) * (change != 0)
        return reward, self.t + 2 >= self.size

    def _observe(self) -> np.ndarray:
        return self._rank(self.t)

    def _full_state(self) -> np.ndarray:
        """Return the newest rank, one-hot, and the share of each rank that is still in the deck."""
        ranks = np.eye(RANKS, dtype=np.float32)
        left = (np.arange(self.size) > self.t[:, None]).astype(np.float32)
        counts = np.einsum("ec,ecr->er", left, ranks[self.cards % DECK // SUITS])
        shares = counts / (self.size / RANKS)
        return np.concatenate([ranks[self._rank(self.t)], shares], 1).astype(np.float32)


class RepeatFirstEnv(SingleFromVector):
    vector = RepeatFirstVectorEnv


class CountRecallEnv(SingleFromVector):
    vector = CountRecallVectorEnv


class AutoencodeEnv(SingleFromVector):
    vector = AutoencodeVectorEnv


class HigherLowerEnv(SingleFromVector):
    vector = HigherLowerVectorEnv
