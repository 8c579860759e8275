"""Exploration rate of every environment over env steps: ladder, schedule, Boltzmann temperature."""

from collections.abc import Callable

import numpy as np

from rlrun.functional.explore import Temperature
from rlrun.schedule import make_schedule
from rlrun.schema import ExploreConfig


def ladder(eps: float, alpha: float, num_envs: int) -> np.ndarray:
    """eps ** (1 + alpha i / (N - 1)) for environments i = 0..N-1, float32 [N]; N = 1 gives [eps].

    Source: Horgan et al. 2018 (Ape-X), section 4; eps 0.4, alpha 7.
    """
    position = np.arange(num_envs) / max(num_envs - 1, 1)
    return (eps ** (1 + alpha * position)).astype(np.float32)


def make_explore(
    config: ExploreConfig, *, num_envs: int, total_steps: int
) -> Callable[[int], np.ndarray]:
    """env_steps -> epsilon of every environment, float32 [num_envs]; or its Temperature.

    A ladder over a single environment would be a constant ``eps``, so N = 1 follows the
    ``epsilon`` schedule.
    """
    if config.name == "ladder" and num_envs > 1:
        assert config.eps is not None  # checked by ExploreConfig
        assert config.alpha is not None
        fixed = ladder(config.eps, config.alpha, num_envs)
        return lambda env_steps: fixed
    if config.name == "none":
        zero = np.zeros(num_envs, np.float32)
        return lambda env_steps: zero
    if config.name == "boltzmann":
        assert config.temperature is not None  # checked by ExploreConfig
        temperature = make_schedule(config.temperature, total_steps=total_steps)
        return lambda env_steps: np.full(num_envs, temperature(env_steps), np.float32).view(
            Temperature
        )
    schedule = make_schedule(config.epsilon, total_steps=total_steps)
    return lambda env_steps: np.full(num_envs, schedule(env_steps), np.float32)
