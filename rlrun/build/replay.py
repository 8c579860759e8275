"""Replays and rollouts, their parts wired; datasets read into them and written from them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlrun.buffer.device.proportional import DeviceProportional, DeviceSampler, DeviceUniform
from rlrun.buffer.device.rank import DeviceRank
from rlrun.buffer.device.replay import device_replay
from rlrun.buffer.hindsight import Hindsight
from rlrun.buffer.mixed import Mixed
from rlrun.buffer.replay import Replay, host_replay
from rlrun.buffer.rollout import Rollout
from rlrun.buffer.samplers.base import Sampler
from rlrun.buffer.samplers.proportional import Proportional, Uniform
from rlrun.buffer.samplers.rank import Rank
from rlrun.buffer.storage.layout import REWARD, ArraySpec, Row, in_memory, on_disk
from rlrun.buffer.storage.sizing import check_rollout, check_size
from rlrun.buffer.windows.cutter import Cutter, StateFilter
from rlrun.build.plan import Plan, plan_of_demos
from rlrun.dataset import errors_name_key, export_replay, open_source
from rlrun.env import goal_functions
from rlrun.errors import ConfigError
from rlrun.schema import PrioritizedConfig, RankConfig
from rlrun.types import Actor, Chunk, generator, torch_seed, tree_map

Note = Callable[[str], None]
READ_ROWS = 256  # rows of a column that a dataset yields at a time


def _silent(line: str) -> None:
    """Discard a note."""


def make_cutter(plan: Plan) -> Cutter:
    """The slicer of ``collector.tiling``."""
    assert plan.window is not None
    c = plan.config.collector
    return Cutter(
        plan.window, columns=plan.columns, overlap=plan.overlap, residual=c.residual,
        plain=c.tiling == "plain",
    )  # fmt: skip


def make_state_filter(plan: Plan) -> StateFilter:
    """The filter that zeros the recurrent states no window starts from."""
    assert plan.window is not None
    c = plan.config.collector
    return StateFilter(
        plan.window, columns=plan.columns, overlap=plan.overlap, residual=c.residual,
        plain=c.tiling == "plain", close=c.trajectory == "collect",
    )  # fmt: skip


def make_replay(plan: Plan, *, note: Note = _silent) -> Replay:
    """Ring, windows and sampler of ``config.buffer``.

    ``note`` receives a line on the size before anything is allocated.

    Raises: ResourceError when it would be too large.
    """
    config, c, window = plan.config, plan.config.buffer, plan.window
    assert window is not None
    assert plan.layout is not None
    layout = check_size(config, plan.layout, window, free=_free_on(c.device))
    note(layout.describe())
    parts: dict[str, Any] = {
        "window": window,
        "cutter": make_cutter(plan),
        "close": config.collector.trajectory == "collect",
        "stack": config.env.frame_stack,
    }
    if c.device != "cpu":
        return device_replay(layout, sampler=_device_sampler(plan, layout.slots), **parts)
    sampler = _sampler(plan, layout.slots)
    allocate = in_memory if c.mmap is None else on_disk(Path(c.mmap))
    replay = host_replay(layout, sampler=sampler, allocate=allocate, **parts)
    if c.relabel is not None:
        goals = goal_functions(config.env)
        assert goals is not None, "rlrun.config has checked that"
        rng = generator(config.seed, "hindsight")
        replay.hindsight = Hindsight(
            replay.ring, goals, strategy=c.relabel, ratio=c.relabel_ratio, generator=rng
        )
    return replay


def make_rollout(plan: Plan, actor: Actor, *, note: Note = _silent) -> Rollout:
    """Storage for the rows of one collect call; ``actor`` shows which arrays it adds to a row.

    ``note`` receives a line on the size before anything is allocated.

    Raises: ResourceError when it would be too large.
    """
    added = {k: ArraySpec(x.shape[1:], x.dtype) for k, x in actor.extras.items()}
    state = tree_map(lambda x: ArraySpec(x.shape[1:], x.dtype), actor.initial_state())
    row = replace(plan.row, extras=plan.row.extras | added, state=state)
    note(check_rollout(plan.config, row))
    rows = plan.config.buffer.capacity // plan.columns
    example = empty_chunk(row, plan.columns)
    return Rollout(example, rows=rows, stack=plan.config.env.frame_stack, spaces=row.spaces)


def empty_chunk(row: Row, columns: int) -> Chunk:
    """A chunk of no rows: shapes and dtypes."""

    def zeros(block: ArraySpec, rows: int = 0) -> np.ndarray:
        return np.zeros((rows, columns, *block.shape), block.dtype)

    flag, reward = np.zeros((0, columns), bool), np.zeros((0, columns), REWARD)
    return Chunk(
        obs=tree_map(lambda block: zeros(block, 1), row.obs),
        first=np.zeros((1, columns), bool),
        action=zeros(row.action),
        reward=reward,
        terminated=flag,
        truncated=flag,
        valid=flag,
        extras={name: zeros(block) for name, block in row.extras.items()},
        states=tree_map(zeros, row.state),
    )


def _free_on(name: str) -> int | None:
    """Free bytes of a CUDA device, None for another."""
    device = torch_device(name)
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def torch_device(name: str) -> torch.device:
    """The device of ``buffer.device``."""
    return torch.device(name)


def _sampler(plan: Plan, slots: int) -> Sampler:
    """The sampler of a replay in host memory."""
    c, total = plan.config.buffer, plan.horizon
    rng = generator(plan.config.seed, "buffer")
    if isinstance(c, PrioritizedConfig):
        return Proportional(c, slots, generator=rng, total_steps=total)
    if isinstance(c, RankConfig):
        return Rank(c, slots, generator=rng, total_steps=total)
    return Uniform(rng)


def _device_sampler(plan: Plan, slots: int) -> DeviceSampler:
    """The sampler of a replay on ``buffer.device``."""
    config, total = plan.config, plan.horizon
    c, device = config.buffer, torch_device(config.buffer.device)
    random = torch.Generator(device).manual_seed(torch_seed(config.seed, "buffer"))
    common: dict[str, Any] = {"generator": random, "device": device}
    if isinstance(c, PrioritizedConfig):
        return DeviceProportional(c, slots, total_steps=total, **common)
    if isinstance(c, RankConfig):
        return DeviceRank(c, slots, total_steps=total, **common)
    return DeviceUniform(slots, **common)


def load_rows(plan: Plan, buffer: Replay | Mixed) -> str:
    """Fill a new replay with the rows of ``buffer.load``; return a line on what was loaded.

    Raises: ConfigError when they are not of this environment, StorageError when damaged.
    """
    c = plan.config.buffer
    assert c.load is not None
    replay = buffer.own if isinstance(buffer, Mixed) else buffer
    source = open_source(c.load)
    source.require(plan.row_spec, plan.config.collector.keep_info)
    _add_all(replay, source, plan)
    replay.loaded.mark(replay.ring, replay.rows)
    held = replay.stored_steps()
    lost = f", of which the newest {held} fit (buffer.capacity)" if held < replay.rows else ""
    return f"loaded: {replay.rows} steps from {c.load}{lost}; {len(replay)} windows"


def _add_all(replay: Replay, source: Any, plan: Plan) -> None:
    """Add the rows of a dataset; its pieces end no trajectory, as a collect call may."""
    close, replay.close = replay.close, False
    like = empty_chunk(plan.row, plan.columns).segment()
    for chunk in source.chunks(plan.columns, READ_ROWS, like=like):
        replay.add(chunk)
    replay.close = close


def make_store(plan: Plan, *, note: Note) -> Replay | Mixed:
    """The learner's replay, beside one of demonstrations where there are such.

    Raises: ConfigError, ResourceError, StorageError.
    """
    own = make_replay(plan, note=note)
    return own if plan.config.buffer.demos is None else with_demos(plan, own, note=note)


def with_demos(plan: Plan, own: Replay, *, note: Note) -> Mixed:
    """``own`` and the demonstrations of ``buffer.demos``, which are read here.

    Raises: ConfigError when they are not of this environment, StorageError when damaged.
    """
    c = plan.config.buffer
    assert c.demos is not None
    assert plan.window is not None
    with errors_name_key("demos"):
        source = open_source(c.demos)
        source.require(plan.row_spec, plan.config.collector.keep_info)
        one = plan_of_demos(plan, [trajectory.steps for trajectory in source.trajectories()])
        demos = make_replay(one)
        _add_all(demos, source, one)
    if not len(demos):
        raise ConfigError(
            f"buffer.demos = {c.demos}: its {demos.rows} steps make no window; a window is "
            f"{plan.window.rows} rows or an episode's rest; choose another dataset"
        )
    note(f"demonstrations: {demos.rows} steps from {c.demos}; {len(demos)} windows")
    rng = generator(plan.config.seed, "demos")
    return Mixed(own, demos, ratio=c.demo_ratio, generator=rng)


def write_rows(
    replay: Replay,
    plan: Plan,
    data_dir: Path,
    *,
    config_text: str,
    meta: dict[str, Any],
    shard_rows: int,
    last: int | None,
    coder: str | None,
) -> None:
    """Write the ``last`` stored rows of all environments together (None: all) as a dataset.

    Raises: ConfigError, StorageError.
    """
    export_replay(
        replay,
        data_dir,
        config_text=config_text,
        spec=plan.row_spec,
        meta=meta,
        shard_rows=shard_rows,
        last=last,
        coder=coder,
    )
