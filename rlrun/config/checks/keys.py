"""Checks across several config keys, and of the machine. Torch-free."""

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from rlrun.config.checks.learning import (
    capacity_errors,
    demonstration_errors,
    graph_errors,
    log_prob_errors,
    offline_errors,
    overlap_errors,
    policies_that,
    relabel_errors,
    require_dataset,
    rollout_errors,
)
from rlrun.config.checks.ray import ray_errors, require_head, require_ray
from rlrun.config.checks.spaces import check_spaces
from rlrun.config.config_errors import config_error
from rlrun.config.directories import check_length
from rlrun.errors import ConfigError, ResourceError, RlrunError, extra
from rlrun.schema import Config, ControlConfig, RayConfig
from rlrun.video.files import require_packages


def check(config: Config, *, fresh: bool = True) -> None:
    """Raise ConfigError or ResourceError for the first thing that does not fit together.

    ``fresh``: for a run about to begin; False skips the checks that only matter then.
    """
    ray = config.pipeline if isinstance(config.pipeline, RayConfig) else None
    if ray is not None:
        require_ray()
    if ray is None or ray.address is None:  # else the GPU is another node's
        _check_device("device", config.device)
    _check_device("buffer.device", config.buffer.device)
    for key in ("load", "demos", "mmap"):
        if (path := getattr(config.buffer, key)) is not None:
            check_length(f"buffer.{key}", Path(path))
    for error in _errors_across_keys(config):
        raise error
    for error in logger_errors(config) if fresh else ():
        raise error
    check_spaces(config, fresh=fresh)
    if fresh:
        check_video(config)
        require_head(ray.address if ray is not None else None)
    require_dataset(config)


def logger_errors(config: Config) -> Iterator[ResourceError]:
    """Loggers whose package is not installed."""
    for name in ("wandb", "mlflow"):
        value = getattr(config.logger, name)
        if value is not None and find_spec(name) is None:
            fix = f"pip install {extra(name)}"
            wrong = f"the package {name} is missing"
            yield ResourceError(f"logger.{name} = {value}: {wrong}; null is allowed; {fix}")


def check_precision(config: Config) -> None:
    """Raise ResourceError where this machine cannot learn in ``learner.precision``.

    Apart from ``check``, and last: asking for an LSTM in bf16 on a CPU imports torch.
    """
    wrong = bf16_fault(config) if config.learner.precision == "bf16" else None
    if wrong is not None:
        fix = "set learner.precision=float32, or use memory=gru, another CPU or a GPU"
        line = f"learner.precision = bf16: {wrong}; float32 is allowed; {fix}"
        raise ResourceError(line)


def bf16_fault(config: Config) -> str | None:
    """The reason why ``config`` cannot learn in bf16 on this machine; None: it can."""
    if config.device != "cpu" or config.memory.name != "lstm":
        return None
    from rlrun.policy import compute

    has = compute.cpu_has_bf16_lstm()
    return None if has else "torch cannot compute an LSTM in bfloat16 on this CPU"


def _instances_errors(config: Config) -> Iterator[RlrunError]:
    """Yield what needs more than one environment."""
    if config.env.instances is None:
        return
    wrong = "env.instances = 1: only one environment may exist, this needs another"
    if config.collector.num_envs != 1 and config.pipeline.name != "offline":
        key, value = "collector.num_envs", config.collector.num_envs
        yield config_error(key, value, wrong, "1 is allowed", "set collector.num_envs=1")
    if config.pipeline.name not in ("serial", "offline"):
        fix = "set pipeline=serial"
        yield config_error("pipeline", config.pipeline.name, wrong, "serial is allowed", fix)
    if config.env.eval_kwargs:
        fix = "set env.eval_kwargs={}"
        yield config_error("env.eval_kwargs", config.env.eval_kwargs, wrong, "{} is allowed", fix)
    if config.run.video_every is not None:
        value, fix = config.run.video_every, "set run.video_every=null"
        yield config_error("run.video_every", value, wrong, "null is allowed", fix)


def _errors_across_keys(config: Config) -> Iterator[RlrunError]:
    window = config.policy.window
    if config.policy.on_policy:
        yield from rollout_errors(config)
    elif window is not None and config.buffer.name == "rollout":
        fits = policies_that(lambda p: p.on_policy)
        wrong = f"policy {config.policy.name} replays what it once collected"
        others = "uniform, prioritized or rank are allowed"
        yield config_error("buffer", "rollout", wrong, others, f"or use {fits}")
    if window is not None:
        yield from overlap_errors(config, window)
        yield from capacity_errors(config, window, config.collector.num_envs)
        yield from relabel_errors(config, window)
    elif config.collector.unit == "window":
        allowed = "step or episode"
        fix = "set collector.unit=step"
        wrong = f"policy {config.policy.name} has no windows"
        yield config_error("collector.unit", "window", wrong, allowed, fix)
    yield from _instances_errors(config)
    yield from ray_errors(config, window)
    if config.buffer.device not in ("cpu", config.device):
        wrong = f"the networks are on device = {config.device}"
        fix = f"set buffer.device=cpu or device={config.buffer.device}"
        allowed = (
            f"cpu or {config.device} is allowed" if config.device != "cpu" else "cpu is allowed"
        )
        yield config_error("buffer.device", config.buffer.device, wrong, allowed, fix)
    if config.buffer.demos is not None:
        yield from demonstration_errors(config)
    for key in ("load", "relabel", "demos", "compress"):
        value = getattr(config.buffer, key)
        if window is None and value not in (None, False):
            wrong = f"policy {config.policy.name} keeps no replay"
            fix = f"set buffer.{key}={'false' if value is True else 'null'}"
            yield config_error(f"buffer.{key}", value, wrong, "a policy that replays", fix)
    yield from log_prob_errors(config)
    if config.pipeline.name == "offline":
        yield from offline_errors(config, window is not None)
    total = config.run.total_steps
    if window is not None and 0 < total <= config.learner.learning_starts:
        wrong = f"nothing would be learned in a run of {total} env steps"
        fix = "lower it, raise run.total_steps, or evaluate only (run.total_steps=0)"
        allowed = f"less than run.total_steps = {total} is allowed"
        yield config_error(
            "learner.learning_starts", config.learner.learning_starts, wrong, allowed, fix
        )
    for key in ("weights", "chunks"):
        if getattr(config.transport, key) == "pco" and find_spec("pcodec") is None:
            wrong = "the package pcodec is missing"
            fix = f"pip install {extra('pco')}, or choose auto"
            allowed = "another coder is allowed"
            yield ResourceError(f"transport.{key} = pco: {wrong}; {allowed}; {fix}")
    most = 4 * (os.cpu_count() or 1)
    if config.learner.threads is not None and config.learner.threads > most:
        wrong = f"this machine has {os.cpu_count()} cores"
        fix = "null is a fixed rule over shape and cores"
        yield config_error(
            "learner.threads", config.learner.threads, wrong, f"1 to {most} or null", fix
        )
    if config.agents.name not in config.policy.agents:
        wrong = f"policy {config.policy.name} is not shown agents that way"
        named = [f"agents={name}" for name in config.policy.agents]
        others = policies_that(lambda p: config.agents.name in p.agents)
        fix = f"or use {others}" if "policy=random" not in others else "set it"
        yield config_error(
            "agents", config.agents.name, wrong, f"{' or '.join(named)} is allowed", fix
        )
    if config.agents.agent_id and config.agents.name != "shared":
        wrong = f"agents={config.agents.name} has no use for it"
        own = "policy.agent_id=true" if config.agents.name == "joint" else "agents=shared"
        yield config_error("agents.agent_id", True, wrong, "false is allowed", f"set it, or {own}")
    if config.agents.name == "joint" and config.env.frame_stack > 1:
        wrong = "joint rows are not stacked"
        fix = "set env.frame_stack=1 or memory=gru"
        yield config_error("env.frame_stack", config.env.frame_stack, wrong, "1 is allowed", fix)
    if config.bonus.name != "none" and not config.policy.learns:
        wrong = f"policy {config.policy.name} learns from no reward"
        yield config_error(
            "bonus", config.bonus.name, wrong, "a policy that learns", "set bonus=none"
        )
    if config.explore.name == "boltzmann" and not config.policy.has_values:
        wrong = f"policy {config.policy.name} has no action values to take a softmax of"
        fitting = policies_that(lambda p: p.has_values)
        yield config_error(
            "explore", "boltzmann", wrong, "explore=none is allowed", f"or use {fitting}"
        )
    if not config.policy.recurrent and config.memory.name != "none":
        wrong = f"policy {config.policy.name} sees single rows and has no memory"
        others = config.policy.recurrent_variant or policies_that(
            lambda p: p.recurrent and set(p.actions) & set(config.policy.actions)
        )
        yield config_error(
            "memory", config.memory.name, wrong, "memory=none is allowed", f"use {others}"
        )
    yield from graph_errors(config)
    if isinstance(config.policy, ControlConfig):
        yield from _actor_critic_errors(config, config.policy)


def _actor_critic_errors(config: Config, policy: ControlConfig) -> Iterator[ConfigError]:
    memory, flat = config.memory.name, config.torso.name == "mlp"
    if config.torso.layer_norm and flat and memory == "none":
        wrong = f"the layers of policy {policy.name} are its heads', which have none"
        fix = "set torso.layer_norm=false"
        yield config_error("torso.layer_norm", True, wrong, "false is allowed", fix)
    if memory != "none" and policy.learn_unroll_len is None:
        wrong = f"memory={memory} is learned over sequences of rows"
        fix = f"use policy=rsac or policy=rtd3, or set policy.learn_unroll_len={policy.nstep + 15}"
        yield config_error(
            "policy.learn_unroll_len", None, wrong, "rows: learned rows + nstep", fix
        )
    encoded = memory != "none" or not flat
    if not policy.head_hidden and (encoded or not config.torso.hidden):
        wrong = "the critic would be linear in the action"
        allowed = "at least one hidden layer is allowed"
        yield config_error(
            "policy.head_hidden", [], wrong, allowed, "set 'policy.head_hidden=[256]'"
        )


def _check_device(key: str, device: str) -> None:
    if device == "cpu":
        return
    found = re.fullmatch(r"cuda(?::(\d+))?", device)
    if not found:
        allowed = "cpu, cuda or cuda:N are allowed"
        fix = "cuda" if re.match(r"gpu|cuda", device, re.IGNORECASE) else "cpu"
        raise config_error(key, device, "unknown device", allowed, f"set {key}={fix}")
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


def check_video(config: Config) -> None:
    """Raise ConfigError where an evaluation could not be drawn; one picture is."""
    every = config.run.video_every
    if every is None:
        return
    from rlrun.env import make_env

    require_packages(f"run.video_every = {every}", ".gif")
    try:
        env = make_env(config.env, num_envs=1, evaluate=True, agents=config.agents, render=True)
        try:
            env.reset(seed=0)
            env.render()
        finally:
            env.close()
    except (ConfigError, ResourceError) as e:
        e.args = (f"run.video_every = {every}: {e}, or set it to null",)
        raise
