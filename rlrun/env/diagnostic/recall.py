"""RepeatPrevious: name the suit seen k - 1 steps ago."""

import numpy as np
from gymnasium import spaces

from rlrun.env.diagnostic.lockstep import Lockstep, Single, need_count

SUITS, CARDS = 4, 52


class RepeatPrevious(Lockstep):
    """POPGym's rules and scoring; k = 4 and one deck are its RepeatPreviousEasy.

    A shuffled deck is turned over card by card, the observation is the suit of the newest card.
    Once k cards lie on the table, the action must name the suit of the k-th newest (k = 4: the
    card seen 3 steps ago): +1 / (52 decks - k) when right, minus the same when wrong, 0 before
    k cards lie there. The episode terminates when the last card is turned, after 52 decks - 1
    steps, 52 decks - k of them scored. Return of an oracle 1, of random actions -0.5, of the best
    memoryless policy (name a suit other than the one seen) 2 * 13/51 - 1 = -0.490.

    Same seed, same cards as POPGym. Source: Morad et al., ICLR 2023 (popgym 1.0.7).
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        k: int = 4,
        decks: int = 1,
        max_episode_steps: int | None = None,
    ) -> None:
        need_count("decks", decks, 1)
        need_count("k", k, 1, CARDS * decks - 1)
        super().__init__(
            num_envs,
            observation_space=spaces.Discrete(SUITS),
            action_space=spaces.Discrete(SUITS),
            max_episode_steps=max_episode_steps,
        )
        self.k = k
        self.cards = CARDS * decks
        self.suits = np.zeros((num_envs, self.cards), np.int64)  # in the order they are turned

    def _open(self, columns: np.ndarray) -> None:
        for i in columns:
            deck = np.arange(self.cards)
            self.rngs[i].shuffle(deck)
            self.suits[i] = deck[::-1] % SUITS

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        asked = self.t + 1 - self.k  # negative while fewer than k cards lie on the table
        right = action == self.suits[self.columns, np.maximum(asked, 0)]
        reward = np.where(right, 1.0, -1.0) * (asked >= 0) / (self.cards - self.k)
        return reward.astype(np.float32), self.t + 2 >= self.cards

    def _observe(self) -> np.ndarray:
        seen: np.ndarray = self.suits[self.columns, self.t]
        return seen


class RepeatPreviousSingle(Single):
    vector = RepeatPrevious
