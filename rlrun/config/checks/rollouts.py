"""What on-policy learning asks of the rest of a config; words errors are made of. Torch-free."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlrun.config.reader import fail
from rlrun.errors import ConfigError
from rlrun.schema import POLICY_CONFIGS, Config, OnPolicyConfig, PolicyConfig


def rollouts(config: Config) -> Iterator[ConfigError]:
    """What on-policy learning asks of the rest."""
    name, buffer, collector = config.policy.name, config.buffer, config.collector
    if buffer.name != "rollout":
        wrong = f"policy {name} learns only from what its present weights have collected"
        replaying = policies(lambda p: not p.on_policy)
        fix = f"or use a policy that replays: {replaying}"
        yield fail("buffer", buffer.name, wrong, "buffer=rollout is allowed", fix)
    if config.explore.name != "none":
        wrong = f"policy {name} explores by drawing from its own distribution"
        yield fail(
            "explore", config.explore.name, wrong, "explore=none is allowed", "leave explore out"
        )
    if collector.unit != "step":
        wrong = "the size of a rollout must be known beforehand"
        fix = "set collector.unit=step"
        yield fail("collector.unit", collector.unit, wrong, "step is allowed", fix)
    if config.learner.update_per_collect != 1:
        key, value = "learner.update_per_collect", config.learner.update_per_collect
        wrong = f"policy {name} learns from a rollout once and drops it"
        fix = "set learner.update_per_collect=1 and learner.replay_ratio=null"
        fix += " (passes over a rollout: policy.epochs)" if name == "ppo" else ""
        yield fail(key, value, wrong, "1 is allowed", fix)
    yield from rollout_capacity(config, 1)
    if config.pipeline.name == "overlapped" and not config.policy.off_by_one:
        wrong = f"policy {name} cannot learn from actions of weights one chunk old"
        fits = policies(lambda p: p.on_policy and p.off_by_one)
        yield fail("pipeline", "overlapped", wrong, "pipeline=serial is allowed", f"or use {fits}")


def rollout_capacity(config: Config, agents: int) -> Iterator[ConfigError]:
    """``agents``: columns of one environment; all but one of them may wait all the time."""
    collector, capacity = config.collector, config.buffer.capacity
    envs = collector.num_envs
    least = agents * envs * (2 * -(-collector.n_sample // envs) + 1)  # every second an end row
    if capacity < least:
        wrong = f"a collect call of {collector.n_sample} steps may bring {least} rows"
        allowed = f"at least {least} are allowed"
        fix = f"set buffer.capacity={least} or lower collector.n_sample"
        yield fail("buffer.capacity", capacity, wrong, allowed, fix)


def check_normalised(config: Config, obs: Any) -> None:
    policy = config.policy
    if not isinstance(policy, OnPolicyConfig) or not policy.normalize_obs:
        return
    if type(obs).__name__ != "Box" or np.dtype(obs.dtype).kind != "f":
        wrong = f"{config.env.id} observes {short(obs)}, which has no running mean"
        fix = "set policy.normalize_obs=false"
        raise fail("policy.normalize_obs", True, wrong, "a Box of real numbers is needed", fix)


def policies(fits: Callable[[type[PolicyConfig]], Any]) -> str:
    """The names of the policies that do, as one would type them."""
    names = [name for name, kind in POLICY_CONFIGS.items() if kind.learns and fits(kind)]
    return " or ".join(f"policy={name}" for name in names or ["random"])


def short(space: Any) -> str:
    name, shape = type(space).__name__, getattr(space, "shape", None)
    return f"{name} {getattr(space, 'dtype', '')} {list(shape)}" if shape else str(space)
