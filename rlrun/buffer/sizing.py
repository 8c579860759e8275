"""Size of a config's replay, computed before allocation. Does not import torch."""

import os
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.buffer.layout import (
    ArraySpec,
    Layout,
    Row,
    amount,
    free_bytes,
    rows_before,
    sampler_blocks,
)
from rlrun.errors import ConfigError, ResourceError
from rlrun.functional.recorded import RowSpaces
from rlrun.schema import BufferConfig, Config
from rlrun.schema.policy import Window
from rlrun.spaces import JointSpace, Tree, tree_leaves, tree_map

SHARE = 0.8  # of free memory, if buffer.max_bytes is null
_FLOAT = np.dtype(np.float32)
_FLAGS = 8  # bytes of a row's reward, first, terminated, truncated and valid


def row_of(
    config: Config, obs: gym.Space[Any], action: gym.Space[Any], state: Tree | None = None
) -> Row:
    """Return one row of an environment with these spaces under this config.

    ``state``: an initial recurrent state [1, ...] of a memory ``mypkg.mod:Cell``; None: a built-in
    memory.
    """
    extras = {name: ArraySpec((), _FLOAT) for name in config.collector.keep_info}
    if config.policy.records_log_prob:
        extras["log_prob"] = ArraySpec((), _FLOAT)
    number = ArraySpec(action.shape or (), np.dtype(action.dtype or np.int64))
    if state is None:
        specs: Tree = tuple(ArraySpec((w,), _FLOAT) for w in config.memory.state_widths())
    else:
        specs = tree_map(lambda s: ArraySpec(tuple(s.shape[1:]), _FLOAT), state)
    if isinstance(obs, JointSpace):  # every agent has its own state
        agents = obs.num_agents
        specs = tree_map(lambda spec: replace(spec, shape=(agents, *spec.shape)), specs)
    spaces = RowSpaces(obs, action, config.policy.masks)
    return Row(_blocks(obs), number, extras, specs, spaces)


def _blocks(space: gym.Space[Any]) -> Tree:
    match space:
        case gym.spaces.Dict():
            return {name: _blocks(s) for name, s in space.spaces.items()}
        case gym.spaces.Tuple():
            return tuple(_blocks(s) for s in space.spaces)
        case _:
            return ArraySpec(space.shape or (), np.dtype(space.dtype or np.int64))


def make_layout(config: Config, row: Row, window: Window, columns: int) -> Layout:
    """Return the layout of ``buffer.capacity`` rows over ``columns``, and their windows.

    Windows of one learned row without a recurrent state need no table. Otherwise
    buffer.window_capacity is its size, by default twice the number of full windows. Short episodes
    make more windows, and the oldest are dropped early when the table is full.
    """
    c = config.buffer
    rows = c.column_rows(columns) + 1  # a slot for the newest observation
    windows = c.window_capacity
    if windows is None and not _single_rows(config, row, window):
        whole = -(-c.capacity // config.collector.stride(window))
        windows = min(2 * whole + 2 * columns, rows * columns)
    slots = rows * columns if windows is None else windows
    return Layout(
        row, columns, rows, windows, sampler_blocks(c.name, slots), goals=c.relabel is not None,
        compress=c.compress, device=c.device,
    )  # fmt: skip


def _single_rows(config: Config, row: Row, window: Window) -> bool:
    """Return whether every stored row has a window of its own, so that no table is needed."""
    single = window.learned == 1 and not window.burnin and not tree_leaves(row.state)
    return single and config.collector.tiling == "lossless"


def check_size(
    config: Config, layout: Layout, window: Window, *, free: int | None = None
) -> Layout:
    """Return the layout if it takes at most buffer.max_bytes, or 80 % of the free memory.

    ``free``: free bytes on buffer.device, if that is not the host. Compressed images are not in the
    sum, because their size is not known; the layout's ``room`` is the rest of the limit.

    Raises: ResourceError naming the largest capacity that fits.
    """
    c = config.buffer
    if c.mmap is not None:
        return _check_files(config, layout)
    if c.device != "cpu" and c.max_bytes is None and free is None:
        return layout  # checked again when the device is open
    (limit, why), size = _limit(c), attrgetter("nbytes")
    if c.max_bytes is None and free is not None:
        limit, why = int(SHARE * free), f"80 % of the free memory of {c.device}"
        size = attrgetter("on_device")
    if size(layout) <= limit:
        left = limit - layout.nbytes  # for compressed images
        return layout if layout.packed <= left else replace(layout, room=left)
    fits = _largest(config, layout, window, limit, size)
    fixes = [f"set buffer.capacity={fits}"] if fits else ["no capacity fits: free memory"]
    fixes += ["raise buffer.max_bytes"] if c.max_bytes is not None else []
    fixes += ["lower buffer.window_capacity"] if c.window_capacity is not None else []
    movable = c.device == "cpu" and not c.compress
    fixes += ["set buffer.mmap=DIR (rows on disk)"] if movable else []
    raise ResourceError(
        f"buffer.capacity = {c.capacity}: {layout.describe()}; allowed are {amount(limit)} "
        f"({why}); {', or '.join(fixes)}"
    )


def _limit(config: BufferConfig) -> tuple[int, str]:
    """Return (bytes that arrays in memory may take, reason)."""
    if config.max_bytes is not None:
        return config.max_bytes, "buffer.max_bytes"
    return int(SHARE * free_bytes(None)), "80 % of the free memory"


def demo_config(config: Config, row: Row, window: Window, lengths: list[int]) -> Config:
    """Return the config of a replay that holds trajectories of ``lengths`` steps in one column."""
    c, single = config.collector, _single_rows(config, row, window)
    capacity = sum(lengths) + len(lengths) + window.rows + config.env.frame_stack + 1
    windows = sum(-(-steps // c.stride(window)) + 1 for steps in lengths)
    buffer = replace(
        config.buffer, capacity=capacity, window_capacity=None if single else windows, mmap=None,
        load=None, demos=None, max_bytes=None, compress=False,
    )  # fmt: skip
    seed = (config.seed + 2**31) % 2**32  # a random stream of its own
    return replace(config, seed=seed, buffer=buffer, collector=replace(c, num_envs=1))


def check_demos(config: Config, layout: Layout, window: Window, lengths: list[int]) -> None:
    """Raise ResourceError if demonstrations and the rows of ``layout`` do not fit together."""
    c, row = config.buffer, layout.row
    demos = make_layout(demo_config(config, row, window, lengths), row, window, 1)
    need = demos.nbytes + layout.nbytes - (layout.movable if c.mmap is not None else 0)
    limit, why = _limit(c)
    if need > limit:
        fix = "lower buffer.capacity, or choose a smaller dataset"
        raise ResourceError(
            f"buffer.demos = {c.demos}: {demos.describe()}; {amount(need)} with the run's rows; "
            f"allowed are {amount(limit)} ({why}); {fix}"
        )


def check_rollout(config: Config, row: Row) -> str:
    """Return a line on the size of an on-policy rollout.

    Raises: ResourceError if it does not fit, see ``check_size``.
    """
    c = config.buffer
    each = sum(b.nbytes for b in tree_leaves((row.obs, row.action, row.extras, row.state)))
    need = c.capacity * (each + _FLAGS)
    limit, why = _limit(c)
    envs = config.collector.num_envs
    text = f"rollout: room for {c.capacity} rows of {envs} environments, {amount(need)}"
    if need > limit:
        raise ResourceError(
            f"buffer.capacity = {c.capacity}: {text}; allowed are {amount(limit)} ({why}); lower "
            "buffer.capacity and collector.n_sample"
        )
    return text


def _check_files(config: Config, layout: Layout) -> Layout:
    """Return the layout if its files fit the disk and its priorities fit the memory."""
    c = config.buffer
    assert c.mmap is not None
    directory = Path(c.mmap)
    existing = next(p for p in (directory, *directory.absolute().parents) if p.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        wrong = "is not writable" if existing.is_dir() else "is not a directory"
        fix = "choose another directory, or set buffer.mmap=null"
        raise ConfigError(
            f"buffer.mmap = {c.mmap}: {existing} {wrong}; allowed is a writable directory; {fix}"
        )
    memory = layout.nbytes - layout.movable
    for need, free, where in (
        (layout.movable, free_bytes(directory), "disk"),
        (memory, free_bytes(None), "memory (priorities stay there)"),
    ):
        limit, why = int(SHARE * free), f"80 % of the free {where}"
        if c.max_bytes is not None and c.max_bytes < limit:
            limit, why = c.max_bytes, "buffer.max_bytes"
        if need > limit:
            raise ResourceError(
                f"buffer.capacity = {c.capacity}: {layout.describe()}; {amount(need)} of it must "
                f"fit into {amount(limit)} ({why}); lower buffer.capacity"
            )
    return layout


def _largest(
    config: Config, layout: Layout, window: Window, limit: int, size: Callable[[Layout], int]
) -> int | None:
    """Return the largest capacity of two significant digits that fits ``limit`` bytes, or None."""

    def fits(capacity: int) -> bool:
        changed = replace(config, buffer=replace(config.buffer, capacity=capacity))
        return size(make_layout(changed, layout.row, window, layout.columns)) <= limit

    length = window.rows + rows_before(config.env.frame_stack)
    batch = config.learner.batch_size * config.collector.stride(window)
    least = max(length * layout.columns, config.learner.learning_starts, batch)
    if not fits(least):
        return None
    low, high = least, config.buffer.capacity  # fits, does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    short = low - low % 10 ** max(len(str(low)) - 2, 0)
    return short if short >= least and fits(short) else low
