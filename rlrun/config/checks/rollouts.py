"""Checks of on-policy learning, and names that errors list. Torch-free."""

from collections.abc import Callable, Iterator
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
)


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
