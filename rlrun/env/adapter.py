"""Construction of environments, and of their spaces before a run, from the config."""

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
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
from rlrun.env.contract import STORABLE, unequal_copies, unsupported_space
from rlrun.env.process_settings import SettingsKept
from rlrun.env.rows import (
    RGB,
    AnyVectorEnv,
    Env,
    NativeVector,
    RowSource,
    Step,
    frames_per_second,
    mask_warned,
    require_renderable,
)
from rlrun.env.workers import Copies, Workers
from rlrun.env.wrappers import require_one_skip, wrap
from rlrun.errors import ConfigError, EnvError, ResourceError
from rlrun.schema import AgentsConfig, EnvConfig
from rlrun.schema.run import OBJECT
from rlrun.spaces import JointSpace, space_parts
from rlrun.video.files import prepare_pygame

__all__ = ["Env", "Step", "known_spaces", "make_env", "make_one_env", "probe"]

AnyEnv = gym.Env[Any, Any]
Probed = tuple[gym.Space[Any], gym.Space[Any], int]
_known: dict[str, tuple[object, Probed]] = {}  # with the registration that was probed
_made: list[weakref.ref[AnyEnv]] = []  # single environments, without wrappers
_NATIVE_DIFFERS = "ALE/"  # ids whose native vector environment is not their single one: ale-py's


def make_env(
    config: EnvConfig,
    *,
    num_envs: int,
    keep_info: tuple[str, ...] = (),
    evaluate: bool = False,
    agents: AgentsConfig | None = None,
    resumable: bool = False,
    render: bool = False,
    compiled: bool = False,
) -> Env:
    """Return ``num_envs`` environments that step together and emit NEXT_STEP rows.

    Args:
        config: the environment. Its ``backend`` selects the implementation:

            - ``auto``: the id's native vector environment if it resets NEXT_STEP and accepts the
              arguments, otherwise ``sync``. ``sync`` too with wrappers, for a single environment
              from Gymnasium and for ids of ``_NATIVE_DIFFERS``.
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
        compiled: most rows will be made by a compiled step of the native vector environment, which
            pays for a single environment, too.

    Raises:
        ConfigError: no such environment, or it cannot be made from this config.
        EnvError: ``backend = vector`` and the native environment does not reset NEXT_STEP; the
            spaces are not those that ``known_spaces`` has found.
    """
    kwargs = env_arguments(config, evaluate=evaluate)
    maker = _Maker(config, kwargs, keep_info, agents, render)
    with SettingsKept():
        if not evaluate:  # only when a run begins
            mask_warned.discard(config.id)
        env = maker.make(num_envs, resumable=resumable, several=num_envs > 1 or compiled)
    registered, known = _known.get(repr((config, agents)), (None, None))
    if known is not None and registered is _registered(config.id):
        copies = [None, (env.obs_space, env.action_space)]  # the first has unknown spaces
        if (error := unequal_copies(config.id, copies, known[:2])) is not None:
            env.close()
            raise error
    return env


def make_one_env(
    config: EnvConfig, *, evaluate: bool = False, render: bool = False, validate: bool = True
) -> AnyEnv:
    """Return a single environment with Gymnasium's interface, with its wrappers and validation.

    ``render``: its ``render()`` returns a picture. ``validate``: raise EnvError on a violation.

    Raises: ConfigError. It is also raised for environments that have no single ones.
    """
    if config.id.startswith(PREFIX) or config.backend == "envpool":
        name = f"env.backend = {config.backend}" if config.backend == "envpool" else config.id
        text = "has no single environments; vector environments are allowed"
        raise ConfigError(f"{name}: {text}; ask for one of one environment")
    maker = _Maker(config, env_arguments(config, evaluate=evaluate), None, None, render)
    with SettingsKept():
        if render:
            prepare_pygame()
        make_one = partial(maker.single, find_spec(config.id))
        return maker.checked(make_one, None, 0) if validate else make_one(0)


@dataclass(frozen=True, slots=True)
class _Maker:
    """The arguments of ``make_env``. ``kwargs``: the environment's arguments."""

    config: EnvConfig
    kwargs: dict[str, Any]
    keep_info: tuple[str, ...] | None
    agents: AgentsConfig | None
    render: bool

    def make(self, num_envs: int, *, resumable: bool = False, several: bool = True) -> Env:
        """Return the rows of the configured backend.

        ``several``: make a single environment in the way that one of several is made.
        """
        config = self.config
        if config.wrappers:
            self._require_wrappable()
        if self.render:
            prepare_pygame()
        limit = config.max_replay_steps if resumable else None
        if config.backend == "envpool":
            from rlrun.env.envpool import EnvPoolVectorEnv  # an optional package

            if self.render:
                raise ConfigError(
                    f"env.backend = envpool: {config.id} cannot be drawn; other backends are "
                    "allowed; watch the weights with an environment of another backend"
                )
            return self._vector(EnvPoolVectorEnv(config.id, num_envs, self.kwargs))
        if config.id.startswith(PREFIX):
            return self._copies(self._pettingzoo, num_envs, limit)
        spec = find_spec(config.id)
        # One native CartPole takes 28 us a step (numpy calls on arrays of one element), the single
        # environment 15 us.
        from_gymnasium = str(spec.entry_point).startswith("gymnasium.envs.")
        prefer_sync = config.backend == "auto" and (
            spec.id.startswith(_NATIVE_DIFFERS) or (from_gymnasium and not several)
        )
        if config.backend in ("auto", "vector") and not config.wrappers and not prefer_sync:
            required = config.backend == "vector"
            raw = _make_native(spec, self.kwargs, num_envs, required=required)
            # Other native environments have the rows of their single ones, which can render.
            if self.render and raw is not None and not isinstance(raw, CartPoleVectorEnv):
                raw.close()
            elif raw is not None:
                return self._native(spec, raw, resumable=resumable)
        return self._copies(partial(self.single, spec), num_envs, limit)

    def _require_wrappable(self) -> None:
        """Raise ConfigError unless wrappers apply: to single environments of one agent."""
        config, names = self.config, ", ".join(wrapper.name for wrapper in self.config.wrappers)
        if config.backend in ("vector", "envpool"):
            raise ConfigError(
                f"env.backend = {config.backend}: wrappers ({names}) apply to single "
                "environments, but this backend steps all at once; allowed with wrappers: auto, "
                "sync, async; set env.backend=auto or env.wrappers=[]"
            )
        if config.id.startswith(PREFIX):
            raise ConfigError(
                f"env.wrappers = {names}: wrappers apply to environments of one agent; allowed "
                "here: []; wrap the PettingZoo environment"
            )

    def _rows(self, source: RowSource) -> Env:
        """Return the rows of ``source``, with a column per agent if ``agents`` asks for it."""
        joint = isinstance(source.single_observation_space, JointSpace)
        if joint and self.agents is not None and self.agents.name != "joint":
            source = AgentColumns(source, self.agents, self.config.id)
        return Env(source, env_id=self.config.id, keep_info=self.keep_info or ())

    def _vector(self, raw: AnyVectorEnv, **options: Any) -> Env:
        _require_supported(self.config.id, raw.single_observation_space, raw.single_action_space)
        options |= {"env_id": self.config.id, "keep_info": self.keep_info or ()}
        return self._rows(NativeVector(raw, **options))

    def _native(self, spec: EnvSpec, raw: AnyVectorEnv, *, resumable: bool) -> Env:
        """Return the rows of a native vector environment."""
        twins = resumable and self.config.instances is None
        twin = partial(make_native, spec, self.kwargs, raw.num_envs) if twins else None
        env = self._vector(raw, resumable=resumable, twin=twin)
        if self.render:
            from rlrun.env.diagnostic.memory import cartpole_picture

            env.picture, env.fps = partial(cartpole_picture, raw, 0), frames_per_second(CartPoleEnv)
        return env

    def _copies(self, make_one: Callable[[int], AnyEnv], num_envs: int, limit: int | None) -> Env:
        """Return rows of single environments. ``limit``: ``CheckedEnv``'s max_replay_steps."""
        env_fns = [partial(self.checked, make_one, limit, i) for i in range(num_envs)]
        processes = self.config.backend == "async" and not self.render
        copies = (Workers if processes else Copies)(env_fns, self.config)
        env = self._rows(copies)
        if self.render:
            env.picture, env.fps = copies.envs[0].render, frames_per_second(copies.envs[0])
        return env

    def checked(self, make: Callable[[int], AnyEnv], limit: int | None, index: int) -> CheckedEnv:
        """Return environment ``index``, validated."""
        try:
            return CheckedEnv(
                partial(make, index),
                env_id=self.config.id,
                index=index,
                max_replay_steps=limit,
                keep_info=self.keep_info,
                alone=self.config.instances is not None,
            )
        except ConfigError as e:
            if index == 0:
                raise
            raise beside_others(e, f"environment {index}, beside {index}") from e

    def single(self, spec: EnvSpec, index: int) -> AnyEnv:
        """Return environment ``index`` with its wrappers."""
        config = self.config
        env = self._drawn(lambda kwargs: make_single(spec, kwargs, index), index)
        if config.instances is None:
            _require_new(config.id, env)
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), gym.Space):
                wrong = f"has no {name}; a gymnasium.spaces object of that name is needed"
                raise EnvError(f"env.id = {config.id}: {wrong}; set it in __init__")
        require_one_skip(config.id, env, {**spec.kwargs, **self.kwargs}, config.wrappers)
        env = wrap(env, config.wrappers)
        _require_supported(config.id, env.observation_space, env.action_space)
        return env

    def _pettingzoo(self, index: int) -> AnyEnv:
        config = self.config
        assert self.agents is not None, "PettingZoo environments need an AgentsConfig"
        if config.backend == "vector":
            raise _no_native(config.id)
        make = partial(PettingZooEnv, config.id, agents=self.agents, keep_info=self.keep_info)
        return self._drawn(make, index)

    def _drawn(self, make: Callable[[dict[str, Any]], AnyEnv], index: int) -> AnyEnv:
        """Return ``make(arguments)``, environment 0 with pictures if they are asked for."""
        env = make(self.kwargs)  # errors that do not concern pictures come first
        if not self.render or index > 0:
            return env
        require_renderable(self.config.id, env)
        env.close()
        return make({**self.kwargs, "render_mode": RGB})


def _no_native(env_id: str) -> ConfigError:
    text = "has no native vector environment; allowed: auto, sync, async; set env.backend=auto"
    return ConfigError(f"env.backend = vector: {env_id} {text}")


def _make_native(
    spec: EnvSpec, kwargs: dict[str, Any], num_envs: int, *, required: bool
) -> AnyVectorEnv | None:
    """Return the native vector environment, or None if ``sync`` has to replace it.

    Raises:
        ConfigError, EnvError: as ``make_env``; always instead of None when ``required``.
    """
    if spec.vector_entry_point is None:
        if required:
            raise _no_native(spec.id)
        return None
    optional = not required and spec.entry_point is not None
    try:
        raw = make_native(spec, kwargs, num_envs)
    except (ConfigError, ResourceError):  # it may take fewer arguments than the single environment
        if optional:
            return None
        raise
    mode = raw.metadata.get("autoreset_mode")
    if mode is AutoresetMode.NEXT_STEP:
        return raw
    raw.close()
    if optional:
        return None
    fix = "" if spec.entry_point is None else "set env.backend=sync or async, or "
    raise EnvError(
        f"env.backend = {'vector' if required else 'auto'}: the native vector environment of "
        f"{spec.id} resets {getattr(mode, 'name', mode)} (metadata['autoreset_mode']); allowed is "
        f"NEXT_STEP; {fix}make the environment NEXT_STEP"
    )


def beside_others(error: ConfigError, which: str) -> ConfigError:
    """Return the error for an environment that cannot be made while others exist."""
    return ConfigError(
        f"{error}; this was {which} that exist already: if only one may, set env.instances=1 "
        "collector.num_envs=1"
    )


def _require_new(env_id: str, env: AnyEnv) -> None:
    """Raise ConfigError if this environment was made before: its steps would be others' too."""
    _made[:] = [made for made in _made if made() is not None]
    if any(made() is env.unwrapped for made in _made):
        raise ConfigError(
            f"env.id = {env_id}: what makes it returned the same environment twice; a new one is "
            "needed each time; make it inside the function, or set env.instances=1"
        )
    _made.append(weakref.ref(env.unwrapped))


def _require_supported(env_id: str, obs: gym.Space[Any], action: gym.Space[Any]) -> None:
    """Raise ConfigError unless rows can hold these observations and actions."""
    if (message := unsupported_space(obs)) is not None:
        parts = obs.spaces if isinstance(obs, spaces.Dict) else {}
        supported = ", ".join(k for k, part in parts.items() if unsupported_space(part) is None)
        fix = f"leave it out: 'env.wrappers=[{{name: filter_obs, keys: [{supported}]}}]'"
        raise ConfigError(
            f"env.id = {env_id}: {message}; allowed are Box, Discrete, MultiDiscrete, MultiBinary "
            f"and Dict or Tuple of them; {fix if supported else 'wrap the environment'}"
        )
    if not isinstance(action, STORABLE):
        raise ConfigError(
            f"env.id = {env_id}: its action space is {' '.join(str(action).split())}; allowed are "
            "Box, Discrete, MultiDiscrete and MultiBinary; wrap the environment"
        )


# -- spaces before a run ---------------------------------------------------------------------------


def probe(config: EnvConfig, agents: AgentsConfig | None = None) -> Probed:
    """Return (observation space, action space, columns) of one environment.

    It has one column, or one per agent. Also tries ``eval_kwargs``.

    Raises:
        ConfigError: no such environment, a missing package, wrong arguments, or spaces that change
            with ``eval_kwargs``.
    """
    in_process = replace(config, backend="sync") if config.backend == "async" else config
    # A function of a script that returns one object twice is found before the run begins.
    copies = 2 if config.id.startswith(OBJECT) and config.instances is None else 1
    probed = []
    for evaluate in (False, True) if config.eval_kwargs else (False,):
        kwargs = env_arguments(config, evaluate=evaluate)
        try:
            with SettingsKept():
                env = _Maker(in_process, kwargs, (), agents, render=False).make(copies)
        except ConfigError as e:
            if evaluate:
                e.args = (str(e).replace("env.kwargs", "env.eval_kwargs"),)
            raise
        env.close()
        probed.append((env.obs_space, env.action_space, env.num_envs // copies))
    if probed[0] != probed[-1]:
        raise ConfigError(
            f"env.eval_kwargs = {config.eval_kwargs}: evaluation has other observation or action "
            "spaces than training; both must be the same; change env.eval_kwargs"
        )
    return probed[0]


def known_spaces(config: EnvConfig, agents: AgentsConfig) -> Probed:
    """Return ``probe`` of a config, computed once per process and registration of its id."""
    key = repr((config, agents))
    if key not in _known or _known[key][0] is not _registered(config.id):
        probed = probe(config, agents)  # imports the module of an id
        _known[key] = _registered(config.id), probed
    return _known[key][1]


def _registered(env_id: str) -> object:
    """Return Gymnasium's entry of an id, or the maker of a team: a notebook may renew them."""
    if env_id.startswith(PREFIX):
        return getattr(sys.modules.get(env_id.removeprefix(PREFIX)), "parallel_env", None)
    return gym.registry.get(env_id.rpartition(":")[2])


def space_summary(space: gym.Space[Any]) -> str:
    """Return ``float32 [4]`` (Box), ``Discrete 3``, ``MultiDiscrete 2 5``, or a sum of them."""
    if (parts := space_parts(space)) is not None:
        return " + ".join(space_summary(part) for _, part in parts)
    match space:
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
        obs, action, _ = probe(config)
    except MissingPackageError as e:
        return f"needs: pip install {e.install}"
    stack = f" x {config.frame_stack} frames" if config.frame_stack > 1 else ""
    return f"{space_summary(obs)}{stack} -> {space_summary(action)}"
