"""The replay of a config, its parts wired."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from rlrun.buffer.storage.layout import Row, in_memory, on_disk
from rlrun.buffer.storage.sizing import check_rollout, check_size, demo_config
from rlrun.buffer.windows.cutter import Cutter
from rlrun.dataset import errors_name_key, export_replay, open_source
from rlrun.env import Env, goal_functions
from rlrun.errors import ConfigError
from rlrun.pipeline.collector import Collector
from rlrun.schema import Config, PrioritizedConfig, RankConfig
from rlrun.types import CHUNK_FIELDS, Chunk, Spec, Window, generator, torch_seed, tree_map

Note = Callable[[str], None]
CHUNK = 256  # rows of a column that a dataset brings at once


def make_cutter(config: Config, window: Window, columns: int) -> Cutter:
    """The slicer of ``collector.tiling``."""
    c = config.collector
    plain = c.tiling == "plain"
    overlap = (c.overlap or 0) if plain else c.learned_overlap
    return Cutter(window, columns=columns, overlap=overlap, residual=c.residual, plain=plain)


def make_replay(
    config: Config, example: Chunk, window: Window, *, note: Note = lambda line: None
) -> Replay:
    """Ring, windows and sampler of ``config.buffer``; ``example`` shows the shapes of rows.

    ``note`` is told the size before anything is allocated.

    Raises: ResourceError when it would be too large.
    """
    c, columns = config.buffer, example.first.shape[1]
    rows = window.burnin, window.learned, window.nstep
    layout = check_size(config, Row.of(example), rows, free=_free_on(c.device), columns=columns)
    note(layout.describe())
    parts: dict[str, Any] = {
        "window": window,
        "cutter": make_cutter(config, window, columns),
        "close": config.collector.trajectory == "collect",
        "stack": config.env.frame_stack,
    }
    if c.device != "cpu":
        return device_replay(layout, sampler=_device_sampler(config, layout.slots), **parts)
    sampler = _sampler(config, layout.slots)
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


def make_rollout(config: Config, example: Chunk, *, note: Note = lambda line: None) -> Rollout:
    """Storage for what one collect call brings; ``example`` shows the shapes of rows.

    ``note`` is told the size before anything is allocated.

    Raises: ResourceError when it would be too large.
    """
    note(check_rollout(config, Row.of(example)))
    rows = config.buffer.capacity // example.first.shape[1]
    return Rollout(example, rows=rows, stack=config.env.frame_stack)


def _free_on(name: str) -> int | None:
    """Free bytes of a CUDA device, None for another."""
    device = torch_device(name)
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def torch_device(name: str) -> torch.device:
    """The device of ``buffer.device``."""
    return torch.device(name)


def _sampler(config: Config, slots: int) -> Sampler:
    """What draws windows in host memory."""
    c, rng, total = config.buffer, generator(config.seed, "buffer"), config.run.total_steps
    if isinstance(c, PrioritizedConfig):
        return Proportional(c, slots, generator=rng, total_steps=total)
    if isinstance(c, RankConfig):
        return Rank(c, slots, generator=rng, total_steps=total)
    return Uniform(rng)


def _device_sampler(config: Config, slots: int) -> DeviceSampler:
    """What draws windows on ``buffer.device``."""
    c, device = config.buffer, torch_device(config.buffer.device)
    random = torch.Generator(device).manual_seed(torch_seed(config.seed, "buffer"))
    common: dict[str, Any] = {"generator": random, "device": device}
    if isinstance(c, PrioritizedConfig):
        return DeviceProportional(c, slots, total_steps=config.run.total_steps, **common)
    if isinstance(c, RankConfig):
        return DeviceRank(c, slots, total_steps=config.run.total_steps, **common)
    return DeviceUniform(slots, **common)


def load_rows(config: Config, buffer: Replay | Mixed, collector: Collector) -> str:
    """Fill a new replay with the rows of ``buffer.load``; a line that says what came.

    Raises: ConfigError when they are not of this environment, StorageError when damaged.
    """
    assert config.buffer.load is not None
    env, replay = collector.env, buffer.own if isinstance(buffer, Mixed) else buffer
    source = open_source(config.buffer.load)
    source.require(Spec(env.obs_space, env.action_space), config.collector.keep_info)
    close, replay.close = replay.close, False  # no collect call ends where a piece of it does
    for chunk in source.chunks(env.num_envs, CHUNK, like=collector.example().segment()):
        replay.add(chunk)
    replay.close = close
    kept = replay.steps_held()
    lost = f", of which the newest {kept} fit (buffer.capacity)" if kept < replay.rows else ""
    return f"loaded: {replay.rows} steps from {config.buffer.load}{lost}; {len(replay)} windows"


def make_store(
    config: Config, collector: Collector, window: Window, *, note: Note
) -> Replay | Mixed:
    """What a learner draws from: a replay, beside one of demonstrations where there are such.

    Raises: ConfigError, ResourceError, StorageError.
    """
    own = make_replay(config, collector.example(), window, note=note)
    if config.buffer.demos is None:
        return own
    return with_demos(config, own, collector, window, note=note)


def _one_column(example: Chunk) -> Chunk:
    """The first column of an example."""
    return Chunk(*(tree_map(lambda x: x[:, :1], getattr(example, n)) for n in CHUNK_FIELDS))


def with_demos(
    config: Config, own: Replay, collector: Collector, window: Window, *, note: Note
) -> Mixed:
    """``own`` and the demonstrations of ``buffer.demos``, which are read here.

    Raises: ConfigError when they are not of this environment, StorageError when damaged.
    """
    c, env = config.buffer, collector.env
    assert c.demos is not None
    one = _one_column(collector.example())
    rows = window.burnin, window.learned, window.nstep
    with errors_name_key("demos"):
        source = open_source(c.demos)
        source.require(Spec(env.obs_space, env.action_space), config.collector.keep_info)
        lengths = [trajectory.steps for trajectory in source.trajectories()]
        demos = make_replay(demo_config(config, rows, lengths), one, window)
        close, demos.close = demos.close, False  # no collect call ends where a piece of it does
        for chunk in source.chunks(1, CHUNK, like=one.segment()):
            demos.add(chunk)
        demos.close = close
    if not len(demos):
        raise ConfigError(
            f"buffer.demos = {c.demos}: its {demos.rows} steps make no window; a window is "
            f"{window.rows} rows or an episode's rest; choose another dataset"
        )
    note(f"demonstrations: {demos.rows} steps from {c.demos}; {len(demos)} windows")
    rng = generator(config.seed, "demos")
    return Mixed(own, demos, ratio=c.demo_ratio, generator=rng)


def write_rows(
    replay: Replay,
    env: Env,
    data_dir: Path,
    *,
    config_text: str,
    meta: dict[str, Any],
    shard_rows: int,
    last: int | None,
    coder: str | None,
) -> None:
    """Write the ``last`` stored rows of all environments together (None: all) as a dataset
    directory. Raises: ConfigError, StorageError."""
    export_replay(
        replay,
        data_dir,
        config_text=config_text,
        spec=Spec(env.obs_space, env.action_space),
        meta=meta,
        shard_rows=shard_rows,
        last=last,
        coder=coder,
    )
