"""Construction of environments from their config, and of their spaces before a run."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode

from rlrun.env.agents import PREFIX, AgentColumns, PettingZooEnv
from rlrun.env.catalog import (
    MissingPackageError,
    env_arguments,
    find_spec,
    make_native,
    make_single,
)
from rlrun.env.checked import CheckedEnv
from rlrun.env.contract import different_copies, unsupported_space
from rlrun.env.process_settings import SettingsKept
from rlrun.env.render import (
    CARTPOLES,
    RGB,
    frames_per_second,
    native_picture,
    require_renderable,
)
from rlrun.env.rows import AnyVectorEnv, Env, NativeVector, RowSource, Step, mask_warned
from rlrun.env.workers import Copies, Workers
from rlrun.env.wrappers import require_one_skip, wrap
from rlrun.errors import ConfigError, EnvError, ResourceError
from rlrun.schema import AgentsConfig, EnvConfig
from rlrun.spaces import JointSpace
from rlrun.video.files import prepare_pygame

__all__ = ["Env", "Step", "known_spaces", "make_env", "make_one_env", "probe", "probe_agents"]

_known: dict[str, tuple[gym.Space[Any], gym.Space[Any], int]] = {}
_NATIVE_DIFFERS = (
    "ALE/"  # ids whose native vector environment is not their single one: ale-py's own
)


def make_env(
    config: EnvConfig,
    *,
    num_envs: int,
    keep_info: tuple[str, ...] = (),
    evaluate: bool = False,
    agents: AgentsConfig | None = None,
    resumable: bool = False,
    render: bool = False,
) -> Env:
    """Return ``num_envs`` environments that step together and emit NEXT_STEP rows.

    Args:
        config: the environment. Its ``backend`` selects the implementation:

            - ``auto``: the id's native vector environment if it resets NEXT_STEP and accepts the
              arguments, otherwise ``sync``. ``sync`` too with wrappers, for a single environment
              from Gymnasium (``_single_is_faster``) and for ids of ``_NATIVE_DIFFERS``.
            - ``vector``: the native vector environment, or an error.
            - ``sync``: single environments; ``async``: each of them in a process of its own.
            - ``envpool``: the id of that name in the package envpool.
        num_envs: number of environments.
        keep_info: keys of ``info`` that a ``Step`` carries.
        evaluate: update ``config.kwargs`` with ``config.eval_kwargs``.
        agents: layout of environments with N agents: N columns per environment, or joint rows
            (also with None).
        resumable: the environments' state will be saved (``Env.state_dict``).
        render: environment 0 can be drawn (``Env.render``). Rows are those without it: a native
            vector environment of Gymnasium's CartPole is drawn as it is, for others the single
            environments step in this process.

    Raises:
        ConfigError: no such environment, or it cannot be made from this config.
        EnvError: ``backend = vector`` and the native environment does not reset NEXT_STEP; the
            spaces are not those that ``known_spaces`` has found.
    """
    with SettingsKept():
        env = _make_env(config, num_envs, keep_info, evaluate, agents, resumable, render)
    if (known := _known.get(repr((config, agents)))) is not None:
        copies = [None, (env.obs_space, env.action_space)]  # the first was made to look at them
        if (error := different_copies(config.id, copies, known[:2])) is not None:
            env.close()
            raise error
    return env


def _make_env(
    config: EnvConfig,
    num_envs: int,
    keep_info: tuple[str, ...],
    evaluate: bool,
    agents: AgentsConfig | None,
    resumable: bool,
    render: bool,
) -> Env:
    if not evaluate:  # of a run that begins
        mask_warned.discard(config.id)
    kwargs = env_arguments(config, evaluate=evaluate)
    if config.wrappers and config.backend in ("vector", "envpool"):
        names = ", ".join(w.name for w in config.wrappers)
        raise ConfigError(
            f"env.backend = {config.backend}: wrappers ({names}) apply to single environments, "
            "this backend steps all at once; allowed with wrappers: auto, sync, async; "
            "set env.backend=auto or env.wrappers=[]"
        )
    if render:
        prepare_pygame()
    if config.backend == "envpool":
        return _make_envpool(config.id, kwargs, num_envs, keep_info, render)
    if config.id.startswith(PREFIX):
        if config.wrappers:
            raise ConfigError(
                f"env.wrappers = {', '.join(w.name for w in config.wrappers)}: they apply to "
                "environments of one agent; allowed here: []; wrap the PettingZoo environment"
            )
        assert agents is not None, "PettingZoo environments need an AgentsConfig"
        make_one: Any = partial(_make_pettingzoo, config, kwargs, agents, render, keep_info)
    else:
        spec = find_spec(config.id)
        prefer_sync = config.backend == "auto" and (
            spec.id.startswith(_NATIVE_DIFFERS) or (num_envs == 1 and _single_is_faster(spec))
        )
        native = config.backend in ("auto", "vector") and not config.wrappers and not prefer_sync
        if native:
            raw = _make_native_rows(spec, kwargs, num_envs, required=config.backend == "vector")
            if render and raw is not None and not isinstance(raw, CARTPOLES):
                raw.close()
                raw = None
            if raw is not None:
                _require_supported(spec.id, raw.single_observation_space, raw.single_action_space)
                twin = partial(make_native, spec, kwargs, num_envs)
                given: dict[str, Any] = {"env_id": config.id, "keep_info": keep_info}
                twins = resumable and config.instances is None
                source = NativeVector(raw, twin=twin if twins else None, **given)
                env = Env(_agents_as_columns(source, agents, config.id), **given)
                if render:
                    env.picture, env.fps = native_picture(raw), frames_per_second(CartPoleEnv)
                return env
        make_one = partial(_make_wrapped, spec, kwargs, config, render)
    limit = config.max_replay_steps if resumable else None
    return _make_copies(make_one, config, num_envs, keep_info, agents, limit, render)


def _make_copies(
    make_one: Callable[[int], gym.Env[Any, Any]],
    config: EnvConfig,
    num_envs: int,
    keep_info: tuple[str, ...],
    agents: AgentsConfig | None,
    limit: int | None,
    render: bool,
) -> Env:
    """Return rows of single environments; ``limit``: as ``CheckedEnv``'s max_replay_steps."""
    env_fns = [
        partial(_make_checked, make_one, config, limit, keep_info, i) for i in range(num_envs)
    ]
    processes = config.backend == "async" and not render
    copies = (Workers if processes else Copies)(env_fns, config)
    env = Env(_agents_as_columns(copies, agents, config.id), env_id=config.id, keep_info=keep_info)
    if render:
        env.picture, env.fps = copies.envs[0].render, frames_per_second(copies.envs[0])
    return env


def make_one_env(
    config: EnvConfig, *, evaluate: bool = False, render: bool = False, validate: bool = True
) -> gym.Env[Any, Any]:
    """Return a single environment of Gymnasium's interface, with its wrappers and validation.

    ``render``: its ``render()`` returns a picture. ``validate``: raise EnvError on a violation.

    Raises: ConfigError, also for environments that are only made several at once.
    """
    several = config.id.startswith(PREFIX) or config.backend == "envpool"
    if several:
        name = f"env.backend = {config.backend}" if config.backend == "envpool" else config.id
        raise ConfigError(
            f"{name}: has no single environments; vector environments are allowed; ask for one of "
            "one environment"
        )
    if render:
        prepare_pygame()
    kwargs = env_arguments(config, evaluate=evaluate)
    make_one = partial(_make_wrapped, find_spec(config.id), kwargs, config, render)
    with SettingsKept():
        return _make_checked(make_one, config, None, None, 0) if validate else make_one(0)


def _agents_as_columns(source: RowSource, agents: AgentsConfig | None, env_id: str) -> RowSource:
    """Give every agent a column of its own where ``agents`` says so, else return ``source``."""
    joint = isinstance(source.single_observation_space, JointSpace)
    if agents is None or agents.name == "joint" or not joint:
        return source
    return AgentColumns(source, agents, env_id)


def _make_pettingzoo(
    config: EnvConfig,
    kwargs: dict[str, Any],
    agents: AgentsConfig,
    render: bool,
    keep_info: tuple[str, ...],
    index: int,
) -> PettingZooEnv:
    if config.backend == "vector":
        raise ConfigError(
            f"env.backend = vector: {config.id} has no native vector environment; "
            "allowed: auto, sync, async; set env.backend=auto"
        )
    if not render or index > 0:
        return PettingZooEnv(config.id, kwargs, agents, keep_info)
    PettingZooEnv(config.id, kwargs, agents).close()  # what is wrong without pictures is told first
    try:
        env = PettingZooEnv(config.id, {**kwargs, "render_mode": RGB}, agents, keep_info)
    except ConfigError as e:
        raise ConfigError(
            f"env.id = {config.id}: it cannot be drawn (its parallel_env takes no render_mode); "
            f"allowed are environments that render {RGB}; add it, or watch another"
        ) from e
    env.metadata = dict(getattr(env.parallel_env, "metadata", None) or {})
    require_renderable(config.id, env)
    return env


def probe(config: EnvConfig) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Return the observation and action space of one environment; also try ``eval_kwargs``.

    Raises:
        ConfigError: no such environment, a missing package, arguments it does not take, spaces
            that change with ``eval_kwargs``.
    """
    return probe_agents(config, None)[:2]


def probe_agents(
    config: EnvConfig, agents: AgentsConfig | None
) -> tuple[gym.Space[Any], gym.Space[Any], int]:
    """Return (observation space, action space, columns per environment); raises as ``probe``.

    An environment has one column, or one per agent.
    """
    in_process = replace(config, backend="sync") if config.backend == "async" else config
    probed = _spaces(in_process, agents, evaluate=False)
    if config.eval_kwargs and _spaces(in_process, agents, evaluate=True) != probed:
        raise ConfigError(
            f"env.eval_kwargs = {config.eval_kwargs}: evaluation has other observation or action "
            "spaces than training; both must be the same; change env.eval_kwargs"
        )
    return probed


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


def _make_checked(
    make_one: Callable[[int], gym.Env[Any, Any]],
    config: EnvConfig,
    limit: int | None,
    keep_info: tuple[str, ...] | None,
    index: int,
) -> CheckedEnv:
    try:
        return CheckedEnv(
            partial(make_one, index),
            env_id=config.id,
            index=index,
            max_replay_steps=limit,
            keep_info=keep_info,
            alone=config.instances is not None,
        )
    except ConfigError as e:
        if index == 0:
            raise
        raise beside_others(e, f"environment {index}, beside {index}") from e


def beside_others(error: ConfigError, which: str) -> ConfigError:
    """Return ``error`` of an environment that could be made alone."""
    return ConfigError(
        f"{error}; this was {which} that exist already: if only one may, set env.instances=1 "
        "collector.num_envs=1"
    )


def _make_wrapped(
    spec: EnvSpec, kwargs: dict[str, Any], config: EnvConfig, render: bool, index: int
) -> gym.Env[Any, Any]:
    single = make_single(spec, kwargs, index)
    require_one_skip(config.id, single, {**spec.kwargs, **kwargs}, config.wrappers)
    if render and index == 0:
        require_renderable(config.id, single)
        single.close()
        single = make_single(spec, {**kwargs, "render_mode": RGB}, index)
    env = wrap(single, config.wrappers)
    _require_supported(config.id, env.observation_space, env.action_space)
    return env


def _require_supported(env_id: str, obs: gym.Space[Any], action: gym.Space[Any]) -> None:
    if (message := unsupported_space(obs)) is not None:
        raise ConfigError(
            f"env.id = {env_id}: {message}; allowed are Box, Discrete, MultiDiscrete, MultiBinary "
            f"and Dict or Tuple of them; {_suggestion(obs)}"
        )
    if isinstance(action, spaces.Dict | spaces.Tuple) or unsupported_space(action) is not None:
        raise ConfigError(
            f"env.id = {env_id}: its action space is {' '.join(str(action).split())}; allowed are "
            "Box, Discrete, MultiDiscrete and MultiBinary; wrap the environment"
        )


def _suggestion(obs: gym.Space[Any]) -> str:
    """Return the advice for an observation with parts that cannot be stored."""
    parts = obs.spaces if isinstance(obs, spaces.Dict) else {}
    supported = [key for key, part in parts.items() if unsupported_space(part) is None]
    if not supported:
        return "wrap the environment"
    return f"leave it out: 'env.wrappers=[{{name: filter_obs, keys: [{', '.join(supported)}]}}]'"


def _make_envpool(
    env_id: str, kwargs: dict[str, Any], num_envs: int, keep_info: tuple[str, ...], render: bool
) -> Env:
    from rlrun.env.envpool import EnvPoolVectorEnv  # a package that only this backend needs

    if render:
        raise ConfigError(
            f"env.backend = envpool: {env_id} cannot be drawn by it; the others are allowed; watch "
            "the weights with an environment of another backend"
        )
    pool = EnvPoolVectorEnv(env_id, num_envs, kwargs)
    _require_supported(env_id, pool.single_observation_space, pool.single_action_space)
    given: dict[str, Any] = {"env_id": env_id, "keep_info": keep_info}
    return Env(NativeVector(pool, **given), **given)


def _single_is_faster(spec: EnvSpec) -> bool:
    """Return True for Gymnasium's own environments.

    For one environment, a step of the native CartPole takes 28 us (numpy calls on arrays of one
    element), a step of the single one 15 us.
    """
    entry = spec.entry_point
    return isinstance(entry, str) and entry.startswith("gymnasium.envs.")


def _make_native_rows(
    spec: EnvSpec, kwargs: dict[str, Any], num_envs: int, *, required: bool
) -> AnyVectorEnv | None:
    """Return the native vector environment, or None if ``sync`` has to replace it.

    Raises:
        ConfigError, EnvError: as ``make_env``; always instead of None when ``required``.
    """
    if spec.vector_entry_point is None:
        if required:
            raise ConfigError(
                f"env.backend = vector: {spec.id} has no native vector environment; "
                "allowed: auto, sync, async; set env.backend=auto"
            )
        return None
    try:
        raw = make_native(spec, kwargs, num_envs)
    except (ConfigError, ResourceError):  # it may take fewer arguments than the single environment
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


def space_summary(space: gym.Space[Any]) -> str:
    """Return ``float32 [4]`` (Box), ``Discrete 3`` or ``MultiDiscrete 2 5``; parts with ``+``."""
    match space:
        case spaces.Dict():
            return " + ".join(map(space_summary, space.spaces.values()))
        case spaces.Tuple():
            return " + ".join(map(space_summary, space.spaces))
        case spaces.Discrete():
            return f"Discrete {space.n}"
        case spaces.MultiDiscrete():
            return f"MultiDiscrete {' '.join(map(str, space.nvec.ravel()))}"
        case _:
            return f"{space.dtype} {list(space.shape or ())}"


def env_summary(config: EnvConfig) -> str:
    """Return ``observation -> action`` with dtypes and shapes, or the install command it needs.

    Raises:
        ConfigError: the environment cannot be made, for a reason other than a missing package.
    """
    try:
        obs, action = probe(config)
    except MissingPackageError as e:
        return f"needs: pip install {e.install}"
    stack = f" x {config.frame_stack} frames" if config.frame_stack > 1 else ""
    return f"{space_summary(obs)}{stack} -> {space_summary(action)}"
