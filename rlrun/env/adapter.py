"""``make_env``: an environment config as NEXT_STEP rows; ``probe``: its spaces, before a run."""

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlrun.env.agents.columns import Columns
from rlrun.env.agents.zoo import PREFIX, Zoo
from rlrun.env.catalog import find_spec, make_native, make_single
from rlrun.env.contract import Checked, unsupported
from rlrun.env.rows import Env, Raw, Step, SyncEnv
from rlrun.env.wrappers import wrap
from rlrun.errors import ConfigError, EnvError
from rlrun.joint import JointSpace
from rlrun.schema import AgentsConfig, EnvConfig

__all__ = ["Env", "Step", "known_spaces", "make_env", "probe", "probe_agents"]

_known: dict[str, tuple[gym.Space[Any], gym.Space[Any], int]] = {}
_OTHER_TASK = "ALE/"  # ids whose native vector environment is not their single one: ale-py's own


def make_env(
    config: EnvConfig,
    *,
    num_envs: int,
    keep_info: tuple[str, ...] = (),
    evaluate: bool = False,
    agents: AgentsConfig | None = None,
) -> Env:
    """``num_envs`` environments in lock-step, as NEXT_STEP rows.

    ``config.backend``: ``auto`` takes the id's native vector environment where there is one that
    resets NEXT_STEP and accepts the arguments, else ``sync`` (also for one environment of
    Gymnasium's own: see ``_faster_alone``; and for ``_OTHER_TASK``); ``vector`` insists on it;
    ``async`` is one process per environment; ``envpool`` is the id of that name in the package
    envpool.
    ``config.wrappers`` stand around single environments: with them ``auto`` is ``sync``.
    ``evaluate`` lays ``config.eval_kwargs`` over ``config.kwargs``. ``keep_info`` names the numbers
    of ``info`` that a Step carries. ``agents`` says how environments of several agents are shown:
    as columns, N for each environment, or (None: too) as joint rows.

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
    if config.id.startswith(PREFIX):
        if config.wrappers:
            raise ConfigError(
                f"env.wrappers = {', '.join(w.name for w in config.wrappers)}: they stand around "
                "environments of one agent; allowed here: []; wrap the PettingZoo environment"
            )
        env_fns = [partial(_zoo, config, kwargs, agents, i) for i in range(num_envs)]
    else:
        spec = find_spec(config.id)
        alone = config.backend == "auto" and (
            spec.id.startswith(_OTHER_TASK) or (num_envs == 1 and _faster_alone(spec))
        )
        if config.backend in ("auto", "vector") and not config.wrappers and not alone:
            raw = _native(spec, kwargs, num_envs, required=config.backend == "vector")
            if raw is not None:
                _need_supported(spec.id, raw.single_observation_space, raw.single_action_space)
                raw = _shown(raw, agents, config.id)
                return Env(raw, env_id=config.id, keep_info=keep_info)
        env_fns = [partial(_checked, spec, kwargs, config, i) for i in range(num_envs)]
    if config.backend == "async":
        from rlrun.env.workers import AsyncEnv  # multiprocessing only where it is asked for

        return AsyncEnv(env_fns, env_id=config.id, keep_info=keep_info)
    try:
        sync = SyncVectorEnv(env_fns, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
    except RuntimeError as e:
        raise ConfigError(f"env.id = {config.id}: its copies differ in their spaces ({e})") from e
    return SyncEnv(_shown(sync, agents, config.id), env_id=config.id, keep_info=keep_info)


def _shown(raw: Raw, agents: AgentsConfig | None, env_id: str) -> Raw:
    """``raw``, or its agents as columns."""
    if agents is None or agents.name == "joint":
        return raw
    if not isinstance(raw.single_observation_space, JointSpace):
        return raw
    return Columns(raw, agents, env_id)


def _zoo(config: EnvConfig, kwargs: dict[str, Any], agents: AgentsConfig | None, i: int) -> Checked:
    if config.backend == "vector":
        raise ConfigError(
            f"env.backend = vector: {config.id} has no native vector environment; "
            "allowed: auto, sync, async; set env.backend=auto"
        )
    assert agents is not None, "who makes one says how its agents are shown"
    return Checked(Zoo(config.id, kwargs, agents), env_id=config.id, index=i)


def probe(config: EnvConfig) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Observation and action space of one environment; also tries ``eval_kwargs``.

    Raises:
        ConfigError: no such environment, a missing package, arguments it does not take, spaces
            that change with ``eval_kwargs``.
    """
    return probe_agents(config, None)[:2]


def probe_agents(
    config: EnvConfig, agents: AgentsConfig | None
) -> tuple[gym.Space[Any], gym.Space[Any], int]:
    """``probe``, and how many columns one environment has: its agents, where each has its own."""
    tried = replace(config, backend="sync") if config.backend == "async" else config
    found = _spaces(tried, agents, evaluate=False)  # without processes: the same environment
    if config.eval_kwargs and _spaces(tried, agents, evaluate=True) != found:
        raise ConfigError(
            f"env.eval_kwargs = {config.eval_kwargs}: evaluation has other observation or action "
            "spaces than training; a policy fits one pair only; change env.eval_kwargs"
        )
    if config.backend == "async" and found[-1] > 1:
        raise ConfigError(
            "env.backend = async: agents as columns come from one process; allowed with it: "
            "agents=joint; set env.backend=auto"
        )
    return found


def known_spaces(config: EnvConfig, agents: AgentsConfig) -> tuple[Any, Any, int]:
    """``probe_agents``, done once per process for a config."""
    key = repr((config, agents))
    if key not in _known:
        _known[key] = probe_agents(config, agents)
    return _known[key]


def _spaces(
    config: EnvConfig, agents: AgentsConfig | None, *, evaluate: bool
) -> tuple[gym.Space[Any], gym.Space[Any], int]:
    env = make_env(config, num_envs=1, evaluate=evaluate, agents=agents)
    env.close()
    return env.obs_space, env.action_space, env.num_envs


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
