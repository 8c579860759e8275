"""Exploration on top of action values."""

import numpy as np


def epsilon_greedy(
    q: np.ndarray, epsilon: np.ndarray | None, generator: np.random.Generator
) -> np.ndarray:
    """argmax_a q, replaced by a uniform action with probability ``epsilon``; int64 [E].

    One coin per environment (``epsilon`` [E]); None draws nothing. ``q`` [E, A].
    """
    greedy: np.ndarray = q.argmax(-1)
    if epsilon is None:
        return greedy
    coin = generator.random(len(epsilon)) < epsilon
    return np.where(coin, generator.integers(q.shape[-1], size=len(epsilon)), greedy)
