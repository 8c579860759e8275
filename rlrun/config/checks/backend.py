"""The rule of ``learner.backend``: which updates a numpy kernel computes. Torch-free."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import gymnasium as gym

from rlrun.config.config_errors import config_error
from rlrun.errors import ConfigError
from rlrun.schema import POLICY_CONFIGS, ActionValueConfig, Config, ControlConfig, DQNConfig

BackendName = Literal["numpy", "torch"]
# Policies that have a kernel.
WITH_KERNEL = ("dqn", "sac", "td3", "ddpg", "ppo", "a2c", "impala", "pqn")


class Backend(NamedTuple):
    """A way to compute a policy's updates, with the reason for it."""

    name: BackendName
    reason: str


def choose_backend(config: Config, obs: gym.Space[Any]) -> Backend:
    """The backend of a run; ``obs``: the observation space of the environment.

    A fixed rule over the config: numpy computes single rows through linear layers, in float32 on
    the CPU, where the calls of autograd cost as much as the products.
    """
    if config.learner.backend == "torch":
        return Backend("torch", "learner.backend=torch")
    obstacle = numpy_obstacle(config, obs)
    if obstacle is not None:
        return Backend("torch", obstacle)
    return Backend("numpy", "linear layers in float32 on the CPU")


def backend_errors(config: Config, obs: gym.Space[Any]) -> Iterator[ConfigError]:
    """Yield the error of a ``learner.backend=numpy`` that is impossible."""
    obstacle = numpy_obstacle(config, obs)
    if config.learner.backend == "numpy" and obstacle is not None:
        wrong = f"no numpy kernel computes this update ({obstacle})"
        fix = "set learner.backend=auto, which takes one where there is one"
        yield config_error("learner.backend", "numpy", wrong, "auto and torch are allowed", fix)


def numpy_obstacle(config: Config, obs: gym.Space[Any]) -> str | None:
    """The setting that no numpy kernel computes; None: one computes the configured update."""
    policy = config.policy
    kinds = {POLICY_CONFIGS[name] for name in WITH_KERNEL}
    if type(policy) not in kinds or ":" in policy.name:  # a user's class, mypkg.mod:Class
        return f"policy {policy.name} has no kernel"
    if isinstance(policy, DQNConfig):
        plain = {"trace": "nstep", "distribution": "none", "noisy": None, "munchausen": None}
        for key, value in plain.items():
            if getattr(policy, key) != value:
                return f"policy.{key}={getattr(policy, key)}"
    if config.torso.name != "mlp":
        return f"torso={config.torso.name}"
    if config.memory.name != "none":
        return f"memory={config.memory.name}"
    if policy.window is not None and policy.window[:2] != (0, 1):
        return "windows of several rows"
    if isinstance(policy, ActionValueConfig | ControlConfig) and policy.prev_inputs:
        return "policy.prev_inputs=true"
    if config.learner.precision != "float32":
        return f"learner.precision={config.learner.precision}"
    if config.device != "cpu":
        return f"device={config.device}"
    if policy.masks and _has_mask(config, obs):
        return "observations have an action mask"
    return None


def _has_mask(config: Config, obs: gym.Space[Any]) -> bool:
    from rlrun.functional.masks import has_mask

    if config.agents.name == "separate" and isinstance(obs, gym.spaces.Dict):
        obs = obs["observation"]
    return has_mask(obs)
