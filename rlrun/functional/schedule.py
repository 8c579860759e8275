"""Schedules over environment steps. Does not import torch.

Everything scheduled (epsilon, alpha, beta, learning rate) is a pure function of ``env_steps``, so a
resumed run needs no counter for it.
"""

import math
from collections.abc import Callable

import numpy as np

from rlrun.schema import ScheduleConfig

Schedule = Callable[[int], float]


def make_schedule(config: ScheduleConfig, *, total_steps: int) -> Schedule:
    """Return a function of env_steps, constant before 0 and after its end.

    linear       start -> end over ``over`` steps
    cosine       the same ends, half a cosine between them
    exponential  end + (start - end) exp(-env_steps / over): ``over`` is the time constant
    piecewise    linear between ``points``

    ``over`` = None is ``total_steps`` (the whole run).
    """
    start, end = config.start, config.end
    over = float(config.over or total_steps or 1)  # a run without steps only evaluates

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
