"""What spans several config keys, and what machine and environment must have. Torch-free."""

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.config.datasets import check_dataset, check_given, check_load, demonstrations, offline
from rlrun.config.graphs import graphs
from rlrun.config.mask import check_mask
from rlrun.config.reader import fail
from rlrun.config.rollouts import check_normalised, policies, rollouts, short
from rlrun.errors import ConfigError, ResourceError
from rlrun.joint import JointSpace
from rlrun.schema import (
    Config,
    ControlConfig,
    ScriptedConfig,
)
from rlrun.trust import trusted_function

_NATURE_CNN_SIDE = 36  # pixels: what the three convolutions of Mnih et al. 2015 leave one of


def check(config: Config, *, fresh: bool = True) -> None:
    """Raises ConfigError or ResourceError for the first thing that does not fit together.

    ``fresh``: a run is about to begin; what only matters then is not asked of an earlier one.
    """
    _check_device("device", config.device)
    _check_device("buffer.device", config.buffer.device)
    for error in _across_keys(config):
        raise error
    _check_spaces(config, fresh=fresh)
    check_given(config)


def window_rows(config: Config) -> tuple[int, int, int] | None:
    """(burn-in, learned, nstep) rows of a window, None for a policy that learns nothing."""
    return config.policy.window


def _across_keys(config: Config) -> Iterator[ConfigError]:
    window = window_rows(config)
    if config.policy.on_policy:
        yield from rollouts(config)
    elif window is not None and config.buffer.name == "rollout":
        fits = policies(lambda p: p.on_policy)
        wrong = f"policy {config.policy.name} replays what it once collected"
        others = "uniform, prioritized or rank are allowed"
        yield fail("buffer", "rollout", wrong, others, f"or use {fits}")
    if window is not None:
        yield from _windows(config, sum(window), window[1])
        yield from _capacity(config, sum(window), window[1], config.collector.num_envs)
        yield from _relabel(config, window)
    elif config.collector.unit == "window":
        allowed = "step or episode"
        fix = "set collector.unit=step"
        wrong = f"policy {config.policy.name} has no windows"
        yield fail("collector.unit", "window", wrong, allowed, fix)
    if config.buffer.device not in ("cpu", config.device):
        wrong = f"the networks are on device = {config.device}"
        fix = f"set buffer.device=cpu or device={config.buffer.device}"
        allowed = (
            f"cpu or {config.device} is allowed" if config.device != "cpu" else "cpu is allowed"
        )
        yield fail("buffer.device", config.buffer.device, wrong, allowed, fix)
    if config.buffer.demos is not None:
        yield from demonstrations(config)
    for key in ("load", "relabel", "demos", "compress"):
        value = getattr(config.buffer, key)
        if window is None and value not in (None, False):
            wrong = f"policy {config.policy.name} keeps no replay"
            fix = f"set buffer.{key}={'false' if value is True else 'null'}"
            yield fail(f"buffer.{key}", value, wrong, "a policy that learns", fix)
    if config.pipeline.name == "offline":
        yield from offline(config, window is not None)
    total = config.run.total_steps
    if window is not None and config.learner.start_after >= total:
        wrong = f"nothing would be learned in a run of {total} env steps"
        fix = "lower it or raise run.total_steps"
        allowed = f"less than run.total_steps = {total} is allowed"
        yield fail("learner.start_after", config.learner.start_after, wrong, allowed, fix)
    for key in ("weights", "chunks"):
        if getattr(config.transport, key) == "pco" and find_spec("pcodec") is None:
            wrong, fix = "the package pcodec is missing", "pip install 'rlrun[pco]', or choose auto"
            yield fail(f"transport.{key}", "pco", wrong, "another coder is allowed", fix)
    most = 4 * (os.cpu_count() or 1)
    if config.learner.threads is not None and config.learner.threads > most:
        wrong = f"this machine has {os.cpu_count()} cores"
        fix = "null is a fixed rule over shape and cores"
        yield fail("learner.threads", config.learner.threads, wrong, f"1 to {most} or null", fix)
    if config.agents.name not in config.policy.agents:
        wrong = f"policy {config.policy.name} is not shown agents that way"
        named = [f"agents={name}" for name in config.policy.agents]
        others = policies(lambda p: config.agents.name in p.agents)
        fix = f"or use {others}" if "policy=random" not in others else "set it"
        yield fail("agents", config.agents.name, wrong, f"{' or '.join(named)} is allowed", fix)
    if config.agents.agent_id and config.agents.name != "shared":
        wrong = f"agents={config.agents.name} has no use for it"
        own = "policy.agent_id=true" if config.agents.name == "joint" else "agents=shared"
        yield fail("agents.agent_id", True, wrong, "false is allowed", f"set it, or {own}")
    if config.agents.name == "joint" and config.env.frame_stack > 1:
        wrong = "joint rows are not stacked"
        fix = "set env.frame_stack=1 or memory=gru"
        yield fail("env.frame_stack", config.env.frame_stack, wrong, "1 is allowed", fix)
    if config.bonus.name != "none" and not config.policy.learns:
        wrong = f"policy {config.policy.name} learns from no reward"
        yield fail("bonus", config.bonus.name, wrong, "a policy that learns", "set bonus=none")
    if config.explore.name == "boltzmann" and not config.policy.has_values:
        wrong = f"policy {config.policy.name} has no action values to take a softmax of"
        fitting = policies(lambda p: p.has_values)
        yield fail("explore", "boltzmann", wrong, "explore=none is allowed", f"or use {fitting}")
    if not config.policy.recurrent and config.memory.name != "none":
        wrong = f"policy {config.policy.name} sees single rows and has no memory"
        others = policies(lambda p: p.recurrent and set(p.actions) & set(config.policy.actions))
        yield fail("memory", config.memory.name, wrong, "memory=none is allowed", f"use {others}")
    yield from graphs(config)
    if isinstance(config.policy, ControlConfig):
        yield from _control(config, config.policy)


def _control(config: Config, policy: ControlConfig) -> Iterator[ConfigError]:
    memory = config.memory.name
    if memory != "none" and policy.learn_unroll_len is None:
        wrong = f"memory={memory} is learned over sequences of rows"
        fix = f"use policy=rsac or policy=rtd3, or set policy.learn_unroll_len={policy.nstep + 15}"
        yield fail("policy.learn_unroll_len", None, wrong, "rows: learned rows + nstep", fix)
    encoded = memory != "none" or config.torso.name != "mlp"
    if not policy.head_hidden and (encoded or not config.torso.hidden):
        wrong = "the critic would be linear in the action"
        allowed = "at least one hidden layer is allowed"
        yield fail("policy.head_hidden", [], wrong, allowed, "set 'policy.head_hidden=[256]'")


def _windows(config: Config, rows: int, learned: int) -> Iterator[ConfigError]:
    collector = config.collector
    if collector.overlap is not None and collector.overlap >= rows:
        wrong = f"windows of {rows} rows cannot share that many"
        allowed = f"0 to {rows - 1} are allowed"
        fix = "lower it or lengthen the window (burnin_step + learn_unroll_len)"
        yield fail("collector.overlap", collector.overlap, wrong, allowed, fix)
    if collector.learned_overlap >= learned:
        wrong = f"a window learns {learned} rows (learn_unroll_len - nstep)"
        allowed = f"0 to {learned - 1} are allowed"
        fix = "lower it or raise policy.learn_unroll_len"
        yield fail("collector.learned_overlap", collector.learned_overlap, wrong, allowed, fix)


def _capacity(config: Config, rows: int, learned: int, envs: int) -> Iterator[ConfigError]:
    """``envs``: columns."""
    buffer, batch = config.buffer, config.learner.batch_size
    least = rows + max(1, config.env.frame_stack - 1)  # a window and the rows read before it
    if buffer.capacity // envs < least:
        wrong = f"{envs} columns of {buffer.capacity // envs} rows hold no window of {rows} rows"
        per = envs // config.collector.num_envs  # agents with columns of their own
        each = f"{per} agents x " if per > 1 else ""
        allowed = f"at least collector.num_envs x {each}{least} = {envs * least} rows"
        fix = f"set buffer.capacity={envs * least} or more"
        yield fail("buffer.capacity", buffer.capacity, wrong, allowed, fix)
    lossless = config.collector.tiling == "lossless"
    step = (
        learned - config.collector.learned_overlap
        if lossless
        else rows - (config.collector.overlap or 0)
    )
    windows = min(buffer.capacity // max(step, 1), buffer.window_capacity or buffer.capacity)
    if batch > windows:
        wrong = f"the buffer holds at most {windows} windows ({buffer.capacity} rows)"
        fix = f"lower it, or raise buffer.capacity to {batch * max(step, 1)} rows"
        if buffer.window_capacity is not None and batch > buffer.window_capacity:
            fix = f"lower it, or raise buffer.window_capacity to {batch}"
        yield fail("learner.batch_size", batch, wrong, f"1 to {windows} are allowed", fix)
    if config.learner.start_after > buffer.capacity:
        wrong = f"the buffer never holds more than buffer.capacity = {buffer.capacity} rows"
        allowed = f"0 to {buffer.capacity} are allowed"
        fix = "lower it or raise buffer.capacity"
        yield fail("learner.start_after", config.learner.start_after, wrong, allowed, fix)


def _relabel(config: Config, window: tuple[int, int, int]) -> Iterator[ConfigError]:
    kind, none = config.buffer.relabel, "set buffer.relabel=null"
    if kind is None:
        return
    if window[:2] != (0, 1) or config.collector.tiling != "lossless":
        wrong = "hindsight goals are for single rows (a stored state saw the old goal)"
        allowed = "one learned row (policy=dqn, ddpg, td3 or sac) and collector.tiling=lossless"
        yield fail("buffer.relabel", kind, wrong, allowed, none)
    if config.env.frame_stack > 1:
        wrong = f"goals are not stacked, env.frame_stack is {config.env.frame_stack}"
        yield fail("buffer.relabel", kind, wrong, "env.frame_stack=1 is allowed", none)
    if config.buffer.compress:
        wrong = "goals are looked up row by row, which compressed rows are not for"
        yield fail("buffer.relabel", kind, wrong, "buffer.compress=false is allowed", none)
    if config.buffer.device != "cpu":
        wrong = (
            f"the environment computes rewards on the host, buffer.device is {config.buffer.device}"
        )
        yield fail("buffer.relabel", kind, wrong, "buffer.device=cpu is allowed", none)


def _check_device(key: str, device: str) -> None:
    if device == "cpu":
        return
    found = re.fullmatch(r"cuda(?::(\d+))?", device)
    if not found:
        allowed = "cpu, cuda or cuda:N are allowed"
        raise fail(key, device, "unknown device", allowed, f"set {key}=cpu")
    count, why = cuda_devices()
    index = int(found.group(1) or 0)
    if index < count:
        return
    wrong = why if count == 0 else f"there are {count} CUDA devices, numbered from 0"
    allowed = "cpu" if count == 0 else f"cpu, cuda or cuda:0 to cuda:{count - 1}"
    raise ResourceError(f"{key} = {device}: {wrong}; allowed here: {allowed}; set {key}=cpu")


@cache
def cuda_devices() -> tuple[int, str]:
    """(number of CUDA devices torch could use, why there is none), without importing torch."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return 0, "torch is not installed"
    version = Path(spec.origin).with_name("version.py")
    text = version.read_text(encoding="utf-8") if version.is_file() else ""
    if re.search(r"^cuda\s*(?::[^=]*)?=\s*None", text, re.MULTILINE):
        return 0, "the installed torch is built without CUDA"
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return 0, "this machine has no NVIDIA driver"
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0, "the NVIDIA driver finds no device"
    return count.value, "the NVIDIA driver finds no device"


_spaces: dict[str, tuple[Any, Any, int]] = {}


def _check_spaces(config: Config, *, fresh: bool) -> None:
    from rlrun.framestack import stack_space  # gymnasium takes its time
    from rlrun.sizing import check_demos, check_rollout, check_size, row_of

    key = repr((config.env, config.agents))
    if key not in _spaces:
        from rlrun.env import probe_agents

        _spaces[key] = probe_agents(config.env, config.agents)
    obs, action, agents = _spaces[key]
    _check_agents(config, obs, action, agents)
    _check_actions(config, action)
    if isinstance(config.policy, ScriptedConfig):
        _check_script(config.policy, action)
    check_mask(config, obs, action)
    check_normalised(config, obs)
    stack = config.env.frame_stack
    seen = stack_space(obs.agent if isinstance(obs, JointSpace) else obs, stack)
    _check_goals(config)
    if config.torso.name == "nature_cnn" and not _image(seen):
        whose = "the environment has" if stack == 1 else f"with env.frame_stack = {stack} it sees"
        wrong = f"it needs images, {whose} {short(seen)}"
        side = f"uint8 Box of three dimensions, sides >= {_NATURE_CNN_SIDE}"
        fix = " or agents.agent_id=false" if agents > 1 and config.agents.agent_id else ""
        raise fail("torso", "nature_cnn", wrong, side, f"use torso=mlp{fix}")
    window = window_rows(config)
    if window is not None and config.buffer.compress:
        _check_images(config, row_of(config, obs, action), window)
    if config.policy.on_policy and fresh:
        check_rollout(config, row_of(config, obs, action))
    if window is not None and fresh:
        if config.buffer.load is not None:
            check_load(config, config.buffer.load, obs, action)
        columns = agents * config.collector.num_envs
        for error in _capacity(config, sum(window), window[1], columns):
            raise error
        row = row_of(config, obs, action)
        check_size(config, row, window, columns=columns)
        if config.buffer.demos is not None:
            lengths = check_dataset(config, "demos", config.buffer.demos, obs, action)
            check_demos(config, row, window, lengths, columns=columns)


def _check_agents(config: Config, obs: Any, action: Any, columns: int) -> None:
    """``columns``: of one environment."""
    several = isinstance(obs, JointSpace) or columns > 1
    if several or config.agents.name == "shared":
        return
    single, team = "env.id", "env=twostep, env=relay or env=pettingzoo"
    wrong = f"one agent acts there, agents={config.agents.name} needs several"
    kind = type(action).__name__
    others = policies(lambda p: kind in p.actions and "shared" in p.agents)
    fix = f"take {team}"
    if "shared" in config.policy.agents:
        fix += ", or set agents=shared"
        raise fail(single, config.env.id, wrong, "an environment of several agents is allowed", fix)
    wrong = f"it learns the value of a team, one agent acts in {config.env.id}"
    raise fail("policy", config.policy.name, wrong, f"{others} fits", fix)


def _check_actions(config: Config, action: Any) -> None:
    kind, policy = type(action).__name__, config.policy
    if kind not in policy.actions:
        wrong = f"it acts in {' and '.join(policy.actions)} spaces, {config.env.id} has {kind}"
        fitting = policies(lambda p: kind in p.actions and "shared" in p.agents)
        own = f"policy={policy.twin} is its like there; " if policy.twin is not None else ""
        raise fail("policy", policy.name, wrong, f"{own}{fitting} fits", "or choose another env")
    if kind == "Box" and not np.isfinite([action.low, action.high]).all():
        wrong = f"its actions have no bounds: {short(action)}"
        allowed = "a Box with finite low and high is allowed"
        raise fail("env.id", config.env.id, wrong, allowed, "wrap the environment")
    if kind == "Box" and action.dtype.kind != "f" and policy.learns:
        wrong = f"its actions are whole numbers: {short(action)}"
        raise fail(
            "env.id", config.env.id, wrong, "a Box of floats is allowed", "use policy=random"
        )


def _check_script(policy: ScriptedConfig, action: Any) -> None:
    from rlrun.functional.script import action_table

    if policy.script == "function":
        assert policy.function is not None  # ScriptedConfig refuses else
        trusted_function("policy.function", policy.function)
    elif policy.script == "sine":
        if type(action).__name__ != "Box" or action.dtype.kind != "f":
            wrong = f"it moves real numbers, the actions are {short(action)}"
            allowed = "constant, cycle, uniform or function is allowed"
            raise fail("policy.script", "sine", wrong, allowed, "set policy.script=cycle")
    else:
        try:
            action_table(policy.choices, action)
        except ValueError as e:
            allowed = "numbers within the bounds are allowed (Discrete actions count from 0)"
            fix = "change policy.choices"
            raise fail("policy.choices", policy.choices, str(e), allowed, fix) from e


def _check_images(config: Config, row: Any, window: tuple[int, int, int]) -> None:
    from rlrun.sizing import make_layout

    if not make_layout(config, row, window).packed:
        wrong = f"{config.env.id} observes no images (uint8, at least 256 bytes a row)"
        allowed = "an environment that does, or false, is allowed"
        raise fail("buffer.compress", True, wrong, allowed, "set buffer.compress=false")


def _check_goals(config: Config) -> None:
    if config.buffer.relabel is None:
        return
    from rlrun.env import goal_functions

    if goal_functions(config.env) is None:
        wrong = f"{config.env.id} observes no goals"
        allowed = "a dict of observation, achieved_goal and desired_goal is needed"
        fix = "use env=bitflip, a goal environment of yours, or buffer.relabel=null"
        raise fail("buffer.relabel", config.buffer.relabel, wrong, allowed, fix)


def _image(space: Any) -> bool:
    shape = getattr(space, "shape", None) or ()
    big = sorted(shape)[-2:]
    is_box = type(space).__name__ == "Box" and space.dtype == "uint8"
    return is_box and len(shape) == 3 and min(big) >= _NATURE_CNN_SIDE
