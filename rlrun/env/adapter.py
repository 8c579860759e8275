"""``make_env``: an environment config as NEXT_STEP rows; ``probe``: its spaces, before a run."""

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlrun.env.catalog import find_spec, make_native, make_single
from rlrun.env.contract import Checked, unsupported
from rlrun.env.rows import Env, Raw, Step, SyncEnv
from rlrun.env.wrappers import wrap
from rlrun.errors import ConfigError, EnvError
from rlrun.schema import EnvConfig

__all__ = ["Env", "Step", "make_env", "probe"]


def make_env(
    config: EnvConfig,
    *,
    num_envs: int,
    keep_info: tuple[str, ...] = (),
    evaluate: bool = False,
) -> Env:
    """``num_envs`` environments in lock-step, as NEXT_STEP rows.

    ``config.backend``: ``auto`` takes the id's native vector environment where there is one that
    resets NEXT_STEP and accepts the arguments, else ``sync`` (also for one environment of
    Gymnasium's own: see ``_faster_alone``); ``vector`` insists on it; ``async`` is one process per
    environment; ``envpool`` is the id of that name in the package envpool.
    ``config.wrappers`` stand around single environments: with them ``auto`` is ``sync``.
    ``evaluate`` lays ``config.eval_kwargs`` over ``config.kwargs``. ``keep_info`` names the numbers
    of ``info`` that a Step carries.

    Raises:
        ConfigError: no such environment, or it cannot be made from this config.
        EnvError: ``backend = vector`` and the native environment does not reset NEXT_STEP.
    """
    kwargs = {**config.kwargs, **(config.eval_kwargs if evaluate else {})}
    if config.max_episode_steps is not None:
        kwargs["max_episode_steps"] = config.max_episode_steps
    if config.wrappers and config.backend in ("vector", "envpool"):
        names = ", ".join(w.name for w in config.wrappers)
        raise ConfigError(
            f"env.backend = {config.backend}: it steps all environments at once, wrappers "
            f"({names}) stand around single ones; allowed with them: auto, sync, async; "
            "set env.backend=auto or env.wrappers=[]"
        )
    if config.backend == "envpool":
        return _pool(config.id, kwargs, num_envs, keep_info)
    spec = find_spec(config.id)
    alone = config.backend == "auto" and num_envs == 1 and _faster_alone(spec)
    if config.backend in ("auto", "vector") and not config.wrappers and not alone:
        raw = _native(spec, kwargs, num_envs, required=config.backend == "vector")
        if raw is not None:
            _need_supported(spec.id, raw.single_observation_space, raw.single_action_space)
            return Env(raw, env_id=config.id, keep_info=keep_info)
    env_fns = [partial(_checked, spec, kwargs, config, i) for i in range(num_envs)]
    if config.backend == "async":
        from rlrun.env.workers import AsyncEnv  # multiprocessing only where it is asked for

        return AsyncEnv(env_fns, env_id=config.id, keep_info=keep_info)
    try:
        sync = SyncVectorEnv(env_fns, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
    except RuntimeError as e:
        raise ConfigError(f"env.id = {config.id}: its copies differ in their spaces ({e})") from e
    return SyncEnv(sync, env_id=config.id, keep_info=keep_info)


def probe(config: EnvConfig) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Observation and action space of one environment; also tries ``eval_kwargs``.

    Raises:
        ConfigError: no such environment, a missing package, arguments it does not take, spaces
            that change with ``eval_kwargs``.
    """
    if config.backend == "async":  # the same environment, without processes
        config = replace(config, backend="sync")
    found = _spaces(config, evaluate=False)
    if config.eval_kwargs and _spaces(config, evaluate=True) != found:
        raise ConfigError(
            f"env.eval_kwargs = {config.eval_kwargs}: evaluation has other observation or action "
            "spaces than training; a policy fits one pair only; change env.eval_kwargs"
        )
    return found


def _spaces(config: EnvConfig, *, evaluate: bool) -> tuple[gym.Space[Any], gym.Space[Any]]:
    env = make_env(config, num_envs=1, evaluate=evaluate)
    env.close()
    return env.obs_space, env.action_space


def _checked(spec: EnvSpec, kwargs: dict[str, Any], config: EnvConfig, index: int) -> Checked:
    env = wrap(make_single(spec, kwargs, index), config.wrappers)
    _need_supported(config.id, env.observation_space, env.action_space)
    return Checked(env, env_id=config.id, index=index)


def _need_supported(env_id: str, obs: gym.Space[Any], action: gym.Space[Any]) -> None:
    if (what := unsupported(obs)) is not None:
        raise ConfigError(
            f"env.id = {env_id}: {what}; allowed are Box, Discrete, MultiDiscrete, MultiBinary "
            f"and Dict or Tuple of them; {_way_out(obs)}"
        )
    if isinstance(action, spaces.Dict | spaces.Tuple) or unsupported(action) is not None:
        raise ConfigError(
            f"env.id = {env_id}: its action space is {' '.join(str(action).split())}; allowed are "
            "Box, Discrete, MultiDiscrete and MultiBinary; wrap the environment"
        )


def _way_out(obs: gym.Space[Any]) -> str:
    """How to do without the parts of an observation that cannot be stored."""
    parts = obs.spaces if isinstance(obs, spaces.Dict) else {}
    good = [key for key, part in parts.items() if unsupported(part) is None]
    if not good:
        return "wrap the environment"
    return f"leave it out: 'env.wrappers=[{{name: filter_obs, keys: [{', '.join(good)}]}}]'"


def _pool(env_id: str, kwargs: dict[str, Any], num_envs: int, keep_info: tuple[str, ...]) -> Env:
    from rlrun.env.pool import Pool, PoolEnv  # a package that only this backend needs

    pool = Pool(env_id, num_envs, kwargs)
    _need_supported(env_id, pool.single_observation_space, pool.single_action_space)
    limit = kwargs.get("max_episode_steps")
    return PoolEnv(pool, env_id=env_id, keep_info=keep_info, limit=limit)


def _faster_alone(spec: EnvSpec) -> bool:
    """Whether one environment steps faster by itself: Gymnasium's native CartPole takes 28 us for
    one (numpy calls on arrays of one number), SyncVectorEnv around the single one 15 us."""
    entry = spec.entry_point
    return isinstance(entry, str) and entry.startswith("gymnasium.envs.")


def _native(spec: EnvSpec, kwargs: dict[str, Any], num_envs: int, *, required: bool) -> Raw | None:
    """The native vector environment when it can serve; None: take sync, unless ``required``."""
    if spec.vector_entry_point is None:
        if required:
            raise ConfigError(
                f"env.backend = vector: {spec.id} has no native vector environment; "
                "allowed: auto, sync, async; set env.backend=auto"
            )
        return None
    try:
        raw = make_native(spec, kwargs, num_envs)
    except ConfigError:  # it may take fewer arguments than the single environment
        if required or spec.entry_point is None:
            raise
        return None
    mode = raw.metadata.get("autoreset_mode")
    if mode is AutoresetMode.NEXT_STEP:
        return raw
    raw.close()
    if not required and spec.entry_point is not None:
        return None
    raise EnvError(
        f"env.backend = {'vector' if required else 'auto'}: the native vector environment of "
        f"{spec.id} resets {getattr(mode, 'name', mode)}; allowed is NEXT_STEP; set "
        "env.backend=sync or async, or make the environment NEXT_STEP"
    )
