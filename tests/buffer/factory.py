"""Replays over counter streams."""

import numpy as np

from rlrun.buffer.replay import Replay
from rlrun.buffer.sampler import Proportional, Uniform
from rlrun.buffer.slicing import Cutter
from rlrun.schema import PrioritizedConfig, ScheduleConfig
from rlrun.types import Window


def constant(value: float) -> ScheduleConfig:
    return ScheduleConfig("constant", value, value, None, None)


def linear(start: float, end: float) -> ScheduleConfig:
    return ScheduleConfig("linear", start, end, None, None)


def prioritized(**changes) -> PrioritizedConfig:
    fields = {
        "name": "prioritized",
        "capacity": 1,
        "window_capacity": None,
        "alpha": constant(0.6),
        "beta": constant(0.4),
        "priority_eps": 1e-6,
        "weight_norm": "batch",
        "initial_priority": "max",
    }
    return PrioritizedConfig(**(fields | changes))


def make_sampler(kind: str, capacity: int, seed: int = 0, **changes):
    rng = np.random.default_rng(seed)
    if kind == "uniform":
        return Uniform(capacity, rng)
    return Proportional(prioritized(**changes), capacity, generator=rng, total_steps=1000)


def make_replay(
    example,
    *,
    rows: int,
    window: Window,
    capacity: int = 512,
    kind="uniform",
    overlap=0,
    close=False,
    **changes,
) -> Replay:
    columns = example.reward.shape[1]
    cutter = Cutter(window, columns=columns, overlap=overlap, residual=None, plain=False)
    sampler = make_sampler(kind, capacity, **changes)
    return Replay(
        example,
        rows=rows,
        window=window,
        cutter=cutter,
        close=close,
        sampler=sampler,
        capacity=capacity,
    )
