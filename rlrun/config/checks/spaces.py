"""Checks of observation and action spaces; the rule of ``learner.backend``. Torch-free."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np

from rlrun.config.checks.learning import (
    capacity_errors,
    check_dataset,
    check_load,
    check_normalised,
    policies_that,
    rollout_capacity_errors,
    space_text,
)
from rlrun.config.config_errors import config_error
from rlrun.errors import ConfigError
from rlrun.schema import (
    POLICY_CONFIGS,
    ActionValueConfig,
    Config,
    ControlConfig,
    DQNConfig,
    MemoryConfig,
    OnPolicyConfig,
    R2D2Config,
    ScriptedConfig,
)
from rlrun.spaces import CNN_SIDE, JointSpace, bounded, is_image, leaf_spaces
from rlrun.tree import Tree
from rlrun.trust import trusted_function


def check_mask(config: Config, obs: Any, action: Any) -> None:
    """Raise ConfigError when ``obs`` has a mask that is none of ``action``."""
    from rlrun.functional.masks import MASK, has_mask  # slow to import

    if not config.policy.masks or not has_mask(obs):
        return
    kind, rename = type(action).__name__, "rename the key or correct the mask"
    if kind != "Discrete":
        wrong = f"it observes an {MASK}, its actions are {kind}"
        raise config_error(
            "env.id", config.env.id, wrong, "a mask of Discrete actions is allowed", rename
        )
    found, wanted = obs[MASK].shape, (int(action.n),)
    if found != wanted:
        wrong = f"its observation's {MASK} is of shape {list(found or ())}"
        allowed = f"one number per action, {list(wanted)}, is allowed"
        raise config_error("env.id", config.env.id, wrong, allowed, rename)
    if config.env.frame_stack > 1:
        wrong = f"masks are not stacked, {config.env.id} observes an {MASK}"
        raise config_error(
            "env.frame_stack", config.env.frame_stack, wrong, "1 is allowed", "set it to 1"
        )


BackendName = Literal["numpy", "torch"]
WITH_KERNEL = (  # policies that have a kernel
    "r2d2", "dqn", "sac", "td3", "ddpg", "ppo", "a2c", "impala", "pqn",
)  # fmt: skip
_MOST_UNITS = 128  # of an LSTM; measured: 0.5 of torch's time at 32 units, 0.8 to 0.9 at 128
_MOST_THREADS = 2  # of torch, faster with more than the kernel's one, measured from 64 units on


class Backend(NamedTuple):
    """A way to compute a policy's updates, with the reason for it."""

    name: BackendName
    reason: str


def choose_backend(config: Config, obs: gym.Space[Any], threads: int) -> Backend:
    """The backend of a run; ``obs``: the observation space of the environment.

    A fixed rule over the config and ``threads`` of torch: numpy computes linear layers and small
    LSTMs, in float32 on the CPU, where the calls of autograd cost as much as the products.
    """
    if config.learner.backend == "torch":
        return Backend("torch", "learner.backend=torch")
    obstacle = numpy_obstacle(config, obs)
    if obstacle is None and config.learner.backend == "auto":
        obstacle = _slower(config, threads)
    if obstacle is not None:
        return Backend("torch", obstacle)
    memory = "and an LSTM " if isinstance(config.policy, R2D2Config) else ""
    return Backend("numpy", f"linear layers {memory}in float32 on the CPU")


def _slower(config: Config, threads: int) -> str | None:
    """Why torch updates a recurrent policy faster; None: it does not."""
    if not isinstance(config.policy, R2D2Config):
        return None
    if config.memory.hidden > _MOST_UNITS:
        return f"memory.hidden={config.memory.hidden}: torch is faster above {_MOST_UNITS}"
    if threads > _MOST_THREADS:
        return f"{threads} threads of torch are faster than the one of a kernel"
    return None


def backend_errors(config: Config, obs: gym.Space[Any]) -> Iterator[ConfigError]:
    """Yield the error of a ``learner.backend=numpy`` that is impossible."""
    if config.learner.backend != "numpy":
        return
    obstacle = numpy_obstacle(config, obs)
    if obstacle is not None:
        wrong = f"no numpy kernel computes this update ({obstacle})"
        fix = "set learner.backend=auto, which takes one where there is one"
        yield config_error("learner.backend", "numpy", wrong, "auto and torch are allowed", fix)


def numpy_obstacle(config: Config, obs: gym.Space[Any]) -> str | None:
    """The setting that no numpy kernel computes; None: one computes the configured update."""
    policy = config.policy
    kinds = {POLICY_CONFIGS[name] for name in WITH_KERNEL}
    if type(policy) not in kinds or ":" in policy.name:  # a user's class, mypkg.mod:Class
        return f"policy {policy.name} has no kernel"
    recurrent = isinstance(policy, R2D2Config)
    if isinstance(policy, DQNConfig | R2D2Config):
        plain = {"trace": "nstep", "distribution": "none", "noisy": None, "munchausen": None}
        for key, value in plain.items():
            if getattr(policy, key) != value:
                return f"policy.{key}={getattr(policy, key)}"
    if config.torso.name != "mlp":
        return f"torso={config.torso.name}"
    if config.memory.name != ("lstm" if recurrent else "none"):
        return f"memory={config.memory.name}"
    if not recurrent:
        if policy.window is not None and policy.window[:2] != (0, 1):
            return "windows of several rows"
        if isinstance(policy, ActionValueConfig | ControlConfig) and policy.prev_inputs:
            return "policy.prev_inputs=true"
    if config.learner.precision != "float32":
        return f"learner.precision={config.learner.precision}"
    if recurrent and config.learner.compile:
        return "learner.compile=true"
    if config.device != "cpu":
        return f"device={config.device}"
    if gym.spaces.flatdim(obs) == 0:  # parameters without an element have no address of their own
        return "observations hold no number"
    if policy.masks and _has_mask(config, obs):
        return "observations have an action mask"
    return "numba is not installed or off" if recurrent and not _has_numba() else None


def _has_numba() -> bool:
    """False where loops of an LSTM kernel would be Python's."""
    from rlrun.jit import COMPILED

    return COMPILED


def _has_mask(config: Config, obs: gym.Space[Any]) -> bool:
    from rlrun.functional.masks import has_mask

    if config.agents.name == "separate" and isinstance(obs, gym.spaces.Dict):
        obs = obs["observation"]
    return has_mask(obs)


def check_spaces(config: Config, *, fresh: bool) -> None:
    from rlrun.buffer.sizing import (
        check_demos,
        check_rollout,
        check_size,
        make_layout,
        row_of,
    )
    from rlrun.env import known_spaces
    from rlrun.env.framestack import stack_space  # slow to import

    obs, action, agents = known_spaces(config.env, config.agents)
    _check_agents(config, obs, action, agents)
    _check_actions(config, action)
    if isinstance(config.policy, ScriptedConfig):
        _check_script(config.policy, action)
    own = obs["observation"] if config.agents.name == "separate" else obs
    check_mask(config, own, action)
    check_normalised(config, own)
    for error in backend_errors(config, obs):
        raise error
    agent_obs = obs.agent if isinstance(obs, JointSpace) else obs
    seen = stack_space(agent_obs, config.env.frame_stack)
    _check_goals(config)
    _check_torso(config, seen, agents)
    row = row_of(config, obs, action, custom_state(config.memory))
    window = config.policy.window
    columns = agents * config.collector.num_envs
    if config.policy.on_policy and fresh:
        for error in rollout_capacity_errors(config, agents):
            raise error
        check_rollout(config, row)
    if window is None:
        return
    layout = make_layout(config, row, window, columns)
    if config.buffer.compress and not layout.packed:
        wrong = f"{config.env.id} observes no images (uint8, at least 256 bytes a row)"
        allowed = "an environment that does, or false, is allowed"
        raise config_error("buffer.compress", True, wrong, allowed, "set buffer.compress=false")
    if fresh:
        if config.buffer.load is not None:
            check_load(config, config.buffer.load, obs, action)
        for error in capacity_errors(config, window, columns):
            raise error
        check_size(config, layout, window)
        if config.buffer.demos is not None:
            lengths = check_dataset(config, "demos", config.buffer.demos, obs, action)
            check_demos(config, layout, window, lengths)


def _check_agents(config: Config, obs: Any, action: Any, columns: int) -> None:
    """Raise ConfigError for agents that do not fit. ``columns``: of one environment."""
    several = isinstance(obs, JointSpace) or columns > 1
    if several or config.agents.name == "shared":
        return
    single, team = "env.id", "env=twostep, env=relay or env=pettingzoo"
    wrong = f"one agent acts there, agents={config.agents.name} needs several"
    kind = type(action).__name__
    others = policies_that(lambda p: kind in p.actions and "shared" in p.agents)
    fix = f"take {team}"
    if "shared" in config.policy.agents:
        fix += ", or set agents=shared"
        raise config_error(
            single, config.env.id, wrong, "an environment of several agents is allowed", fix
        )
    wrong = f"it learns the value of a team, one agent acts in {config.env.id}"
    raise config_error("policy", config.policy.name, wrong, f"{others} fits", fix)


def _check_actions(config: Config, action: Any) -> None:
    kind, policy = type(action).__name__, config.policy
    if kind not in policy.actions:
        wrong = f"it acts in {' and '.join(policy.actions)} spaces, {config.env.id} has {kind}"
        fitting = policies_that(lambda p: kind in p.actions and "shared" in p.agents)
        own = (
            f"policy={policy.counterpart} is its like there; "
            if policy.counterpart is not None
            else ""
        )
        raise config_error(
            "policy", policy.name, wrong, f"{own}{fitting} fits", "or choose another env"
        )
    if config.agents.name == "joint" and policy.learns and np.ndim(getattr(action, "nvec", 0)) > 1:
        wrong = f"its agents choose one number each, those of {config.env.id} several"
        fitting = policies_that(lambda p: kind in p.actions and "shared" in p.agents)
        raise config_error("policy", policy.name, wrong, f"{fitting} fits", "or choose another env")
    trains = policy.on_policy or policy.window is not None
    if trains and 0 in (action.shape or ()):
        wrong = f"an action holds no number: {space_text(action)}"
        allowed = "an action of at least one number is allowed"
        raise config_error(
            "env.id", config.env.id, wrong, allowed, "use policy=random or policy=scripted"
        )
    if kind == "Box" and not (isinstance(policy, OnPolicyConfig) or bounded(action).all()):
        wrong = f"its actions have no bounds: {space_text(action)}"
        allowed = "a Box with finite low and high is allowed"
        fix = "wrap the environment, or use policy=ppo, a2c or impala"
        raise config_error("env.id", config.env.id, wrong, allowed, fix)
    if kind == "Box" and action.dtype.kind != "f" and policy.learns:
        wrong = f"its actions are whole numbers: {space_text(action)}"
        raise config_error(
            "env.id", config.env.id, wrong, "a Box of floats is allowed", "use policy=random"
        )


def _check_script(policy: ScriptedConfig, action: Any) -> None:
    from rlrun.functional.explore import action_table

    if policy.script == "function":
        assert policy.function is not None  # ScriptedConfig refuses else
        trusted_function("policy.function", policy.function)
    elif policy.script == "sine":
        if type(action).__name__ != "Box" or action.dtype.kind != "f":
            wrong = f"it moves real numbers, the actions are {space_text(action)}"
            allowed = "constant, cycle, uniform or function is allowed"
            raise config_error("policy.script", "sine", wrong, allowed, "set policy.script=cycle")
    else:
        try:
            action_table(policy.choices, action)
        except ValueError as e:
            allowed = "numbers within the bounds are allowed (Discrete actions count from 0)"
            fix = "change policy.choices"
            raise config_error("policy.choices", policy.choices, str(e), allowed, fix) from e


def _check_goals(config: Config) -> None:
    if config.buffer.relabel is None:
        return
    from rlrun.env import goal_functions

    if goal_functions(config.env) is None:
        wrong = f"{config.env.id} observes no goals"
        allowed = "a dict of observation, achieved_goal and desired_goal is needed"
        fix = "use env=bitflip, a goal environment of yours, or buffer.relabel=null"
        raise config_error("buffer.relabel", config.buffer.relabel, wrong, allowed, fix)


def _check_torso(config: Config, seen: Any, agents: int) -> None:
    """Raise ConfigError for a torso that does not read ``seen``, or flattens an image of it."""
    name, stack = config.torso.name, config.env.frame_stack
    whose = "the environment has" if stack == 1 else f"with env.frame_stack = {stack} it sees"
    parts = [leaf for path, leaf in leaf_spaces(seen) if path]
    images = [leaf for leaf in parts if is_image(leaf)]
    if name == "nature_cnn" and not is_image(seen):
        wrong = f"it needs images, {whose} {space_text(seen)}"
        allowed = f"uint8 or float Box of three dimensions, sides >= {CNN_SIDE}"
        fix = " or agents.agent_id=false" if agents > 1 and config.agents.agent_id else ""
        fix = "use torso=image_and_vector" if images else f"use torso=mlp{fix}"
        raise config_error("torso", name, wrong, allowed, fix)
    if name == "image_and_vector" and not (images or is_image(seen)):
        wrong = f"it needs an image, {whose} {space_text(seen)}"
        allowed = f"a Dict or Tuple with a Box of three dimensions, sides >= {CNN_SIDE}, is allowed"
        raise config_error("torso", name, wrong, allowed, "use torso=mlp")
    learns = config.policy.on_policy or config.policy.window is not None
    if name == "mlp" and learns and (images or is_image(seen)):
        fits = "image_and_vector" if images else "nature_cnn"
        image = space_text(images[0] if images else seen)
        wrong = f"layers of {[*config.torso.hidden]} units would see {image} as one flat row"
        flat = "'env.wrappers=[flatten_obs]' if that is meant"
        if images:
            flat = "pick other parts with 'env.wrappers=[{name: filter_obs, keys: [...]}]'"
        fix = f"set torso={fits}, or {flat}"
        raise config_error("torso", name, wrong, f"torso={fits} is allowed", fix)


def custom_state(memory: MemoryConfig) -> Tree | None:
    """Initial state [1, ...] of a memory ``mypkg.mod:Cell``; None: a built-in one."""
    if ":" not in memory.name:
        return None
    import torch  # the user's module has imported it

    from rlrun.nets.memory import make_memory

    with torch.random.fork_rng(devices=[]):
        return make_memory(memory, 1).initial_state(1, torch.device("cpu"))
