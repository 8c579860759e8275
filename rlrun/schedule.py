"""Schedules over environment steps. Torch-free.

Everything scheduled (epsilon, alpha, beta, learning rate) is a pure function of ``env_steps``, so
that a resumed run needs no counter of its own.
"""

import math
from collections.abc import Callable

import numpy as np

from rlrun.functional.explore import Temperature
from rlrun.schema import ExploreConfig, ScheduleConfig

Schedule = Callable[[int], float]


def make_schedule(config: ScheduleConfig, *, total_steps: int) -> Schedule:
    """A function of env_steps, constant before 0 and after its end.

    linear       start -> end over ``over`` steps
    cosine       the same ends, half a cosine between them
    exponential  end + (start - end) exp(-env_steps / over): ``over`` is the time constant
    piecewise    linear between ``points``

    ``over`` = None is ``total_steps`` (the whole run).
    """
    start, end = config.start, config.end
    over = float(config.over or total_steps)

    def linear(env_steps: int) -> float:
        return start + (end - start) * min(max(env_steps / over, 0.0), 1.0)

    def cosine(env_steps: int) -> float:
        part = min(max(env_steps / over, 0.0), 1.0)
        return end + (start - end) * 0.5 * (1 + math.cos(math.pi * part))

    def exponential(env_steps: int) -> float:
        return end + (start - end) * math.exp(-max(env_steps, 0) / over)

    def piecewise(env_steps: int) -> float:
        steps, values = zip(*config.points or (), strict=True)
        return float(np.interp(env_steps, steps, values))

    if config.kind == "constant":
        return lambda env_steps: start
    table = {"linear": linear, "cosine": cosine, "exponential": exponential, "piecewise": piecewise}
    return table[config.kind]


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
    ``epsilon`` schedule (semantics: the default for a single environment).
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
