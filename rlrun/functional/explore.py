"""Actions that nobody chose."""

from typing import Any

import gymnasium as gym
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


def team_epsilon_greedy(
    q: np.ndarray,
    allowed: np.ndarray,
    epsilon: np.ndarray | None,
    generator: np.random.Generator,
) -> np.ndarray:
    """argmax_a q of every agent, replaced by a uniform action of those ``allowed``; int64 [E, N].

    One coin per agent, with its environment's probability ``epsilon`` [E]; None draws nothing.
    ``q`` [E, N, A], ``allowed`` bool [E, N, A], at least one action each.
    """
    greedy: np.ndarray = np.where(allowed, q, -np.inf).argmax(-1)
    if epsilon is None:
        return greedy
    coin = generator.random(greedy.shape) < epsilon[:, None]
    drawn = np.where(allowed, generator.random(q.shape), -1.0).argmax(-1)
    return np.where(coin, drawn, greedy)


def uniform_actions(
    space: gym.Space[Any], num_envs: int, generator: np.random.Generator
) -> np.ndarray:
    """Actions [E, *A] drawn uniformly from a Discrete, MultiDiscrete, MultiBinary or bounded Box.

    Integer boxes include their upper bounds. Discrete actions count from 0: environments add
    their ``start``.
    """
    size = (num_envs, *(space.shape or ()))
    match space:
        case gym.spaces.Discrete():
            return generator.integers(space.n, size=size)
        case gym.spaces.MultiDiscrete():
            return generator.integers(space.nvec, size=size)
        case gym.spaces.MultiBinary():
            return generator.integers(2, size=size, dtype=np.int8)
        case gym.spaces.Box() if space.dtype.kind == "f":
            return generator.uniform(space.low, space.high, size).astype(space.dtype)
        case gym.spaces.Box():
            return generator.integers(space.low, space.high, size, space.dtype, endpoint=True)
        case _:
            raise AssertionError(f"checked in rlrun.config: {space}")
