"""RepeatPrevious: recall the suit observed k - 1 steps ago."""

import numpy as np
from gymnasium import spaces

from rlrun.env.diagnostic.vector import LockstepVectorEnv, SingleFromVector, require_int

SUITS, CARDS = 4, 52


class RepeatPreviousVectorEnv(LockstepVectorEnv):
    """POPGym's rules and scoring; k = 4 and one deck are its RepeatPreviousEasy, 32 and two its
    medium, 64 and three its hard.

    A shuffled deck is revealed card by card; the observation is the suit of the newest card. Once
    k cards are revealed, the action must name the suit of the k-th newest (k = 4: the card observed
    3 steps ago). Reward +1 / (52 decks - k) if correct, minus the same if not, 0 before k cards are
    revealed. The episode terminates with the last card, after 52 decks - 1 steps, 52 decks - k of
    them scored. Return of an oracle 1, of random actions -0.5, of the best memoryless policy (a
    suit other than the observed one) 2 * 13/51 - 1 = -0.490.

    Same seed, same cards as POPGym. Source: Morad et al., ICLR 2023 (popgym 1.0.7).
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        k: int = 4,
        decks: int = 1,
        full_state: bool = False,
        max_episode_steps: int | None = None,
    ) -> None:
        require_int("decks", decks, 1)
        require_int("k", k, 1, CARDS * decks - 1)
        super().__init__(
            num_envs,
            observation_space=spaces.Discrete(SUITS),
            action_space=spaces.Discrete(SUITS),
            max_episode_steps=max_episode_steps,
            full_state=SUITS if full_state else None,
        )
        self.k = k
        self.cards = CARDS * decks
        self.suits = np.zeros((num_envs, self.cards), np.int64)  # in the order of the deck

    def _reset_columns(self, columns: np.ndarray) -> None:
        for i in columns:
            deck = np.arange(self.cards)
            self.rngs[i].shuffle(deck)
            self.suits[i] = deck[::-1] % SUITS

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        past = self.t + 1 - self.k  # negative while fewer than k cards are revealed
        correct = action == self.suits[self.columns, np.maximum(past, 0)]
        reward = np.where(correct, 1.0, -1.0) * (past >= 0) / (self.cards - self.k)
        return reward.astype(np.float32), self.t + 2 >= self.cards

    def _observe(self) -> np.ndarray:
        suit: np.ndarray = self.suits[self.columns, self.t]
        return suit

    def _full_state(self) -> np.ndarray:
        past = self.t + 1 - self.k
        suit = self.suits[self.columns, np.maximum(past, 0)]
        return np.eye(SUITS, dtype=np.float32)[suit] * (past >= 0)[:, None].astype(np.float32)


class RepeatPreviousEnv(SingleFromVector):
    vector = RepeatPreviousVectorEnv
