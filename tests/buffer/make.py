"""Replays as the product builds them, over rows that tests make up. The one place that wires parts.

Everything behind ``plan_of`` may be moved without touching another test of this room.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.buffer.layout import ArraySpec, Row, make_layout
from rlrun.buffer.replay import Replay
from rlrun.run import build
from rlrun.run.plan import Plan, make_plan
from rlrun.types import Sample, Segment, Window, tree_map
from tests.compose import config, constant
from tests.reference.replay_model import World

KINDS = ("uniform", "prioritized", "rank")
HORIZON = 1000  # env steps of schedules
CPU = torch.device("cpu")


DRAWS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "prioritized": {
        "alpha": constant(0.6), "beta": constant(0.4), "priority_eps": 1e-6,
        "initial_priority": "max",
    },
    "rank": {
        "alpha": constant(0.7), "beta": constant(0.5), "resort_every": 1,
        "initial_priority": "max",
    },
}  # fmt: skip


@cache
def _plan(kind: str) -> Plan:
    return make_plan(config("policy=r2d2", "env=cartpole", f"buffer={kind}"))


def row_like(example: Any) -> Row:
    """The row of a chunk, which may have zero rows."""

    def block(x: Any) -> ArraySpec:
        return ArraySpec(tuple(x.shape[2:]), np.asarray(x).dtype)

    obs, extras, states = (
        tree_map(block, x) for x in (example.obs, example.extras, example.states)
    )
    return Row(obs, block(example.action), extras, states)


def plan_of(
    example: Segment,
    *,
    rows: int,
    window: Window,
    capacity: int | None = 512,
    kind: str = "uniform",
    overlap: int = 0,
    stack: int = 1,
    plain: bool = False,
    residual: str | None = None,
    seed: int = 0,
    count: int = 1,
    **buffer: Any,
) -> Plan:
    """Plan of a replay of ``rows`` slots a column for rows like ``example``.

    ``capacity``: windows; None lets windows of one learned row do without a limit. ``count``:
    collectors, each with the columns of ``example`` and so many windows. ``buffer``: keys of
    buffer.
    """
    plan, columns = _plan(kind), example.reward.shape[1] * count
    c, row = plan.config, row_like(example)
    row = replace(row, state=()) if capacity is None else row
    given = DRAWS[kind] | buffer
    table = None if capacity is None else capacity * count
    store = replace(c.buffer, capacity=(rows - 1) * columns, window_capacity=table, **given)
    collector = replace(
        c.collector, num_envs=columns, tiling="plain" if plain else "lossless",
        overlap=overlap if plain else None, residual=residual if plain else None,
        learned_overlap=0 if plain else overlap,
    )  # fmt: skip
    env = replace(c.env, frame_stack=stack)
    c = replace(c, seed=seed, buffer=store, collector=collector, env=env)
    layout = make_layout(c, row, window, columns, parts=count)
    return replace(
        plan, config=c, columns=columns, row=row, window=window, layout=layout, horizon=HORIZON
    )


def make_replay(
    example: Segment, *, goals: Any = None, device: torch.device | None = None, count: int = 1,
    **given: Any,
) -> Replay:  # fmt: skip
    """The replay of ``plan_of``.

    ``goals``: reward and termination for hindsight (buffer.relabel, by default ``future``);
    ``device``: stands in for the GPU of buffer.device=cuda.
    """
    if goals is not None:
        given = {"relabel": "future"} | given
    given |= {} if device is None else {"device": "cuda"}
    plan = plan_of(example, count=count, **given)
    with pytest.MonkeyPatch.context() as patch:
        if goals is not None:
            patch.setattr(build, "goal_functions", lambda env: goals)
        if device is not None:
            patch.setattr(build, "torch_device", lambda name: device)
        return build.make_replay(plan, count=count)


def flat(kind: str, count: int, *, rows: int | None = None, **given: Any) -> tuple[Replay, Any]:
    """(replay of ``count`` windows of one row, their keys oldest first).

    ``rows``: slots; fewer than ``count`` + 4 drop the oldest windows.
    """
    world = World([[10**6]], [[0]], states=False)
    replay = make_replay(
        world.chunk(0), rows=rows or count + 4, window=Window(0, 1, 1), capacity=None, kind=kind,
        **given,
    )  # fmt: skip
    replay.add(world.chunk(count + 1))
    return replay, replay.sample(0, 0).key


def host(x: Any) -> np.ndarray:
    """An array or a tensor of any device as an array."""
    return x.numpy(force=True) if isinstance(x, torch.Tensor) else x


def same_segments(one: Segment, other: Segment) -> None:
    """Every bit."""
    for x, y in zip(one.tensors(), other.tensors(), strict=True):
        assert x.numpy().tobytes() == y.numpy().tobytes()


def same_samples(one: Sample, other: Sample) -> None:
    np.testing.assert_array_equal(one.key, other.key)
    assert torch.equal(one.weight, other.weight)
    same_segments(one.segment, other.segment)


def live(replay: Replay) -> np.ndarray:
    """Keys of all stored windows, oldest first."""
    return host(replay.sample(0, 0).key)


def priorities(replay: Replay) -> np.ndarray:
    """Priorities of all stored windows, oldest first."""
    found = replay.peek(1, np.random.default_rng(0), 0)
    return np.empty(0) if found is None or found.stored is None else found.stored


def counts(replay: Replay, draws: int, batch: int, env_steps: int = 0) -> np.ndarray:
    """How often each stored window is drawn in ``draws`` batches, oldest first."""
    keys, found = live(replay), []
    for _ in range(draws):
        found.append(np.asarray(replay.sample(batch, env_steps).key))
    at = keys.searchsorted(np.concatenate(found))
    assert (keys[np.minimum(at, len(keys) - 1)] == np.concatenate(found)).all(), "a dead window"
    return np.bincount(at, minlength=len(keys))


def far_from(counted: np.ndarray, mass: np.ndarray) -> float:
    """Standard deviations by which Pearson's statistic of the counts exceeds its mean.

    Bins of expected count < 5 are pooled. Stratified draws vary less than independent ones, so the
    test is one-sided: large is wrong.
    """
    expected = mass / mass.sum() * counted.sum()
    small = expected < 5
    counted = np.append(counted[~small], counted[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    keep = expected > 0
    freedom = max(int(keep.sum()) - 1, 1)
    statistic = ((counted - expected)[keep] ** 2 / expected[keep]).sum()
    return float((statistic - freedom) / np.sqrt(2 * freedom))
