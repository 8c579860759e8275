"""Checks of on-policy and offline learning, of windows and of CUDA graphs. Torch-free."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.config.config_errors import config_error
from rlrun.errors import ConfigError
from rlrun.schema import (
    POLICY_CONFIGS,
    Config,
    OnPolicyConfig,
    PolicyConfig,
    PPOConfig,
    PQNConfig,
    SwitchedConfig,
    ValueConfig,
)
from rlrun.schema.policy import Window


def rollout_errors(config: Config) -> Iterator[ConfigError]:
    """Yield the errors of an on-policy policy."""
    name, buffer, collector = config.policy.name, config.buffer, config.collector
    if buffer.name != "rollout":
        wrong = f"policy {name} learns only from what its present weights have collected"
        replaying = policies_that(lambda p: not p.on_policy)
        fix = f"or use a policy that replays: {replaying}"
        yield config_error("buffer", buffer.name, wrong, "buffer=rollout is allowed", fix)
    if config.explore.name != "none" and not config.policy.explores:
        wrong = f"policy {name} explores by drawing from its own distribution"
        yield config_error(
            "explore", config.explore.name, wrong, "explore=none is allowed", "leave explore out"
        )
    if collector.unit != "step":
        wrong = "the size of a rollout must be known beforehand"
        fix = "set collector.unit=step"
        yield config_error("collector.unit", collector.unit, wrong, "step is allowed", fix)
    if config.learner.update_per_collect != 1:
        key, value = "learner.update_per_collect", config.learner.update_per_collect
        wrong = f"policy {name} learns from a rollout once and drops it"
        fix = "set learner.update_per_collect=1 and learner.replay_ratio=null"
        fix += (
            " (passes over a rollout: policy.epochs)"
            if isinstance(config.policy, PPOConfig | PQNConfig)
            else ""
        )
        yield config_error(key, value, wrong, "1 is allowed", fix)
    yield from rollout_capacity_errors(config, 1)
    if config.pipeline.name == "overlapped" and not config.policy.tolerates_lag:
        wrong = f"policy {name} cannot learn from actions of weights one chunk old"
        fits = policies_that(lambda p: p.on_policy and p.tolerates_lag)
        yield config_error(
            "pipeline", "overlapped", wrong, "pipeline=serial is allowed", f"or use {fits}"
        )


def rollout_capacity_errors(config: Config, agents: int) -> Iterator[ConfigError]:
    """Yield the errors of the rollout's size. ``agents``: columns of one environment."""
    collector, capacity = config.collector, config.buffer.capacity
    envs = collector.num_envs
    least = agents * envs * (2 * -(-collector.n_sample // envs) + 1)  # every second an end row
    if capacity < least:
        wrong = f"a collect call of {collector.n_sample} steps may bring {least} rows"
        allowed = f"at least {least} are allowed"
        fix = f"set buffer.capacity={least} or lower collector.n_sample"
        yield config_error("buffer.capacity", capacity, wrong, allowed, fix)


def check_normalised(config: Config, obs: Any) -> None:
    policy = config.policy
    if not isinstance(policy, OnPolicyConfig) or not policy.normalize_obs:
        return
    if type(obs).__name__ != "Box" or np.dtype(obs.dtype).kind != "f":
        wrong = f"{config.env.id} observes {space_text(obs)}, which has no running mean"
        fix = "set policy.normalize_obs=false"
        raise config_error(
            "policy.normalize_obs", True, wrong, "a Box of real numbers is needed", fix
        )


def policies_that(fits: Callable[[type[PolicyConfig]], Any]) -> str:
    """``policy=a or policy=b`` of the learning policies that ``fits`` accepts."""
    names = [name for name, kind in POLICY_CONFIGS.items() if kind.learns and fits(kind)]
    return " or ".join(f"policy={name}" for name in names or ["random"])


def space_text(space: Any) -> str:
    name, shape = type(space).__name__, getattr(space, "shape", None)
    return f"{name} {getattr(space, 'dtype', '')} {list(shape)}" if shape else str(space)


def overlap_errors(config: Config, window: Window) -> Iterator[ConfigError]:
    collector, rows, learned = config.collector, window.rows, window.learned
    if collector.overlap is not None and collector.overlap >= rows:
        wrong = f"windows of {rows} rows cannot share that many"
        allowed = f"0 to {rows - 1} are allowed"
        fix = "lower it or lengthen the window (burnin_step + learn_unroll_len)"
        yield config_error("collector.overlap", collector.overlap, wrong, allowed, fix)
    if collector.learned_overlap >= learned:
        wrong = f"a window learns {learned} rows (learn_unroll_len - nstep)"
        allowed = f"0 to {learned - 1} are allowed"
        fix = "lower it or raise policy.learn_unroll_len"
        yield config_error(
            "collector.learned_overlap", collector.learned_overlap, wrong, allowed, fix
        )


def capacity_errors(config: Config, window: Window, envs: int) -> Iterator[ConfigError]:
    """Yield the errors of the sizes of buffer and batch. ``envs``: columns."""
    buffer, batch, rows = config.buffer, config.learner.batch_size, window.rows
    least = rows + max(1, config.env.frame_stack - 1)  # a window and the rows read before it
    if buffer.capacity // envs < least:
        wrong = f"{envs} columns of {buffer.capacity // envs} rows hold no window of {rows} rows"
        per = envs // config.collector.num_envs  # agents with columns of their own
        each = f"{per} agents x " if per > 1 else ""
        allowed = f"at least collector.num_envs x {each}{least} = {envs * least} rows"
        fix = f"set buffer.capacity={envs * least} or more"
        yield config_error("buffer.capacity", buffer.capacity, wrong, allowed, fix)
    stride = max(config.collector.stride(window), 1)
    windows = min(buffer.capacity // stride, buffer.window_capacity or buffer.capacity)
    if batch > windows:
        wrong = f"the buffer holds at most {windows} windows ({buffer.capacity} rows)"
        fix = f"lower it, or raise buffer.capacity to {batch * stride} rows"
        if buffer.window_capacity is not None and batch > buffer.window_capacity:
            fix = f"lower it, or raise buffer.window_capacity to {batch}"
        yield config_error("learner.batch_size", batch, wrong, f"1 to {windows} are allowed", fix)
    if config.learner.learning_starts > buffer.capacity:
        wrong = f"the buffer never holds more than buffer.capacity = {buffer.capacity} rows"
        allowed = f"0 to {buffer.capacity} are allowed"
        fix = "lower it or raise buffer.capacity"
        yield config_error(
            "learner.learning_starts", config.learner.learning_starts, wrong, allowed, fix
        )


def relabel_errors(config: Config, window: Window) -> Iterator[ConfigError]:
    kind, none = config.buffer.relabel, "set buffer.relabel=null"
    if kind is None:
        return
    if window[:2] != (0, 1) or config.collector.tiling != "lossless":
        wrong = "hindsight goals are for single rows (a stored state saw the old goal)"
        allowed = "one learned row (policy=dqn, ddpg, td3 or sac) and collector.tiling=lossless"
        yield config_error("buffer.relabel", kind, wrong, allowed, none)
    if config.env.frame_stack > 1:
        wrong = f"goals are not stacked, env.frame_stack is {config.env.frame_stack}"
        yield config_error("buffer.relabel", kind, wrong, "env.frame_stack=1 is allowed", none)
    if config.buffer.compress:
        wrong = "goals are looked up row by row, which compressed rows are not for"
        yield config_error("buffer.relabel", kind, wrong, "buffer.compress=false is allowed", none)
    if config.buffer.device != "cpu":
        wrong = (
            f"the environment computes rewards on the host, buffer.device is {config.buffer.device}"
        )
        yield config_error("buffer.relabel", kind, wrong, "buffer.device=cpu is allowed", none)


def graph_errors(config: Config) -> Iterator[ConfigError]:
    """Yield the errors of ``learner.cuda_graph`` and ``learner.compile``."""
    learner, policy = config.learner, config.policy
    if not isinstance(policy, ValueConfig):
        fits = policies_that(lambda p: issubclass(p, ValueConfig))
        wrong = f"policy {policy.name} has no updates of that kind"
        for name, value in (("cuda_graph", learner.cuda_graph), ("compile", learner.compile)):
            if value:
                key = f"learner.{name}"
                yield config_error(key, True, wrong, "false is allowed", f"set it, or use {fits}")
    elif learner.cuda_graph and config.agents.name == "separate":
        wrong = "every agent's part of a batch has a size of its own, a graph has one"
        yield config_error(
            "learner.cuda_graph", True, wrong, "false is allowed", "or set agents=shared"
        )
    elif learner.cuda_graph and isinstance(policy, SwitchedConfig):
        drawn = policy.noisy is not None or policy.distribution == "implicit"
        wrong = "noise and quantile levels are drawn on the host for every update"
        fix = "or set policy.noisy=null and no policy.distribution=implicit"
        if drawn:
            yield config_error("learner.cuda_graph", True, wrong, "false is allowed", fix)


def offline_errors(config: Config, learns: bool) -> Iterator[ConfigError]:
    """Yield the errors of ``pipeline=offline``. ``learns``: the policy learns from windows."""
    name = config.policy.name
    if not learns:
        wrong, fix = f"policy {name} learns nothing from a dataset", "set pipeline=serial"
        yield config_error("pipeline", "offline", wrong, "serial is allowed", fix)
    if config.learner.update_per_collect is None:
        wrong = "an offline run (pipeline=offline) collects no env steps to keep a ratio to"
        fix = "set learner=offline, or learner.replay_ratio=null learner.update_per_collect=1"
        yield config_error("learner.replay_ratio", config.learner.replay_ratio, wrong, "null", fix)
    if config.bonus.name != "none":
        wrong = "novelty counts visits, an offline run (pipeline=offline) makes none"
        yield config_error("bonus", config.bonus.name, wrong, "none is allowed", "set bonus=none")


def log_prob_errors(config: Config) -> Iterator[ConfigError]:
    """Yield the error of a policy that reads the probabilities of actions, on rows without them."""
    if not config.policy.records_log_prob:
        return
    given = [f"buffer.{k}={v}" for k in ("load", "demos") if (v := getattr(config.buffer, k))]
    if given or config.pipeline.name == "offline":
        rows = given[0] if given else "pipeline=offline"
        wrong = f"it reads the probability of each action, which rows of a dataset lack ({rows})"
        fix = "set policy.trace=watkins_q_lambda, or collect all rows"
        yield config_error(
            "policy.trace", "retrace", wrong, "nstep and the three q_lambda are allowed", fix
        )


def require_dataset(config: Config) -> None:
    """Raise ConfigError when an offline run has no dataset.

    After all other checks: no dataset repairs what does not fit together.
    """
    if config.pipeline.name == "offline" and config.buffer.load is None:
        wrong = "an offline run (pipeline=offline) has no other rows to learn from"
        allowed = "a dataset directory or minari:ID is allowed"
        fix = "set buffer.load=DIR (rlrun export RUN_DIR DIR makes one), or pipeline=serial"
        raise config_error("buffer.load", None, wrong, allowed, fix)


def demonstration_errors(config: Config) -> Iterator[ConfigError]:
    """Yield the errors of ``buffer.demos``: a second replay in host memory, of unchanged rows."""
    demos, buffer, none = config.buffer.demos, config.buffer, "set buffer.demos=null"
    if buffer.device != "cpu":
        wrong = f"demonstrations are kept in host memory, buffer.device is {buffer.device}"
        yield config_error("buffer.demos", demos, wrong, "buffer.device=cpu is allowed", none)
    if buffer.relabel is not None:
        wrong = f"demonstrations keep their goals, buffer.relabel is {buffer.relabel}"
        yield config_error("buffer.demos", demos, wrong, "buffer.relabel=null is allowed", none)
    if config.pipeline.name == "offline":
        wrong = "an offline run (pipeline=offline) collects no rows to mix them with"
        yield config_error("buffer.demos", demos, wrong, "buffer.load is allowed", none)


def check_load(config: Config, source_name: str, obs: Any, action: Any) -> None:
    """Raise ConfigError when ``buffer.load`` does not fit the environment, or the buffer."""
    lengths = check_dataset(config, "load", source_name, obs, action)
    steps, capacity = sum(lengths), config.buffer.capacity
    if config.pipeline.name == "offline" and steps + len(lengths) > capacity:
        wrong = f"the dataset has {steps} steps in {len(lengths)} trajectories, the oldest lost"
        allowed = f"{steps + len(lengths)} rows hold them in one column"
        fix = f"set buffer.capacity={steps + len(lengths)} or more"
        raise config_error("buffer.capacity", capacity, wrong, allowed, fix)
    if config.pipeline.name == "offline" and steps < config.learner.learning_starts:
        wrong = f"the dataset has {steps} steps, nothing would be learned"
        fix = "set learner.learning_starts=0, or load a larger dataset"
        least = config.learner.learning_starts
        raise config_error(
            "learner.learning_starts", least, wrong, f"0 to {steps} are allowed", fix
        )


def check_dataset(config: Config, key: str, source_name: str, obs: Any, action: Any) -> list[int]:
    """The lengths of a dataset's trajectories, when they fit the environment."""
    if not source_name.startswith("minari:") and not Path(source_name, "dataset.json").is_file():
        what = "has no dataset.json" if Path(source_name).is_dir() else "is no directory"
        fix = "make one with rlrun export RUN_DIR DATA_DIR"
        raise config_error(
            f"buffer.{key}", source_name, what, "a dataset directory is allowed", fix
        )
    from rlrun.dataset import errors_name_key, open_source
    from rlrun.types import Spec  # torch, only now

    with errors_name_key(key):
        source = open_source(source_name)
        source.require(Spec(obs, action), config.collector.keep_info)
        lengths = [trajectory.steps for trajectory in source.trajectories()]
    if not lengths:
        fix = "choose another"
        raise config_error(
            f"buffer.{key}", source_name, "has no steps", "a dataset with rows is allowed", fix
        )
    return lengths
