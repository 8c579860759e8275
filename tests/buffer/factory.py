"""Replays over counter streams."""

import numpy as np

from rlrun.buffer.replay import Replay, host_replay
from rlrun.buffer.samplers.proportional import Proportional, Uniform
from rlrun.buffer.samplers.rank import Rank
from rlrun.buffer.storage.layout import Layout, Row, sampler_blocks
from rlrun.buffer.windows.cutter import Cutter
from rlrun.schema import PrioritizedConfig, RankConfig, ScheduleConfig
from rlrun.types import Window


def constant(value: float) -> ScheduleConfig:
    return ScheduleConfig("constant", value, value, None, None)


def linear(start: float, end: float) -> ScheduleConfig:
    return ScheduleConfig("linear", start, end, None, None)


NONE = np.empty(0, np.int64)
KEPT = {
    "window_capacity": None,
    "max_bytes": None,
    "device": "cpu",
    "mmap": None,
    "compress": False,
    "load": None,
    "relabel": None,
    "relabel_ratio": 0.8,
    "demos": None,
    "demo_ratio": 0.25,
}


def rank(**changes) -> RankConfig:
    fields = {
        "name": "rank",
        "capacity": 1,
        **KEPT,
        "alpha": constant(0.7),
        "beta": constant(0.5),
        "resort_every": 100,
        "weight_norm": "batch",
        "initial_priority": "max",
    }
    return RankConfig(**(fields | changes))


def prioritized(**changes) -> PrioritizedConfig:
    fields = {
        "name": "prioritized",
        "capacity": 1,
        **KEPT,
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
        return Uniform(rng)
    if kind == "rank":
        return Rank(rank(**changes), capacity, generator=rng, total_steps=1000)
    return Proportional(prioritized(**changes), capacity, generator=rng, total_steps=1000)


def make_layout(
    example, *, rows: int, window: Window, capacity: int | None, kind="uniform", **changes
) -> Layout:
    """``capacity`` None: no table, which takes a window of one learned row."""
    columns = example.reward.shape[1]
    slots = rows * columns if capacity is None else capacity
    sampler = sampler_blocks(kind, slots, changes.get("weight_norm", "batch"))
    return Layout(Row.of(example), columns, rows, capacity, sampler, changes.get("goals", False))


def make_replay(
    example,
    *,
    rows: int,
    window: Window,
    capacity: int | None = 512,
    kind="uniform",
    overlap=0,
    close=False,
    stack=1,
    **changes,
) -> Replay:
    """A lossless replay; windows of one learned row take the table too unless capacity=None."""
    goals = changes.pop("goals", False)
    layout = make_layout(
        example, rows=rows, window=window, capacity=capacity, kind=kind, goals=goals, **changes
    )
    cutter = Cutter(window, columns=layout.columns, overlap=overlap, residual=None, plain=False)
    sampler = make_sampler(kind, layout.slots, **changes)
    return host_replay(
        layout, window=window, cutter=cutter, close=close, sampler=sampler, stack=stack
    )
