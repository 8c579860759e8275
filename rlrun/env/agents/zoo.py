"""Parallel environments of PettingZoo's interface as environments of joint rows.

``env.id = pettingzoo:MODULE`` names a module with ``parallel_env(**env.kwargs)``, or, with a
version as in ``sisl/pursuit-v5``, an id of PettingZoo's own registry (from 1.27 on). The agents are
its ``possible_agents``, in that order. Observation vectors of different lengths are filled up with
zeros. The team's episode ends when no agent is left; it is truncated when one of the last was.
"""

import importlib
import importlib.util
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlrun.env.catalog import broken_import
from rlrun.env.contract import problem, unsupported
from rlrun.errors import ConfigError
from rlrun.joint import JointSpace, joint_actions
from rlrun.schema import AgentsConfig
from rlrun.tree import Tree, tree_map

PREFIX = "pettingzoo:"
_INSTALL = {"pettingzoo": "'pettingzoo[{family}]'", "mpe2": "mpe2"}  # package -> what pip takes


class Zoo(gym.Env[Any, Any]):
    """One parallel environment; per agent and step its info has reward, terminated and truncated.

    ``alive`` [N]: the agent is in the episode, or was when it was truncated with the team.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium's own convention)

    def __init__(self, env_id: str, kwargs: dict[str, Any], agents: AgentsConfig) -> None:
        """Raises: ConfigError: no such module, no such package, agents that do not go together."""
        kwargs = dict(kwargs)
        self.limit: int | None = kwargs.pop("max_episode_steps", None)
        self.id, self.config, self.zoo = env_id, agents, _make(env_id, kwargs)
        self.names: list[str] = list(self.zoo.possible_agents)
        own = [self.zoo.observation_space(name) for name in self.names]
        action = joint_actions([self.zoo.action_space(name) for name in self.names])
        if action is None:
            each = {n: str(self.zoo.action_space(n)) for n in self.names}
            raise self._unfit(f"its agents' actions do not go together: {each}")
        self.action_space, self.own = action, own
        agent = self._agent_space(own)
        self.blank = tree_map(lambda x: np.zeros_like(x), _example(agent))
        self.global_state = agents.state == "env" and self._has_state()
        self.agent, self.state_space = agent, self._state_space()
        self.observation_space = JointSpace(agent, self.state_space, len(self.names))
        self.steps = 0

    # -- spaces ----------------------------------------------------------------------------------

    def _agent_space(self, own: list[gym.Space[Any]]) -> gym.Space[Any]:
        """One space for all agents; vectors get the length of the longest."""
        if all(space == own[0] for space in own):
            if (what := unsupported(own[0])) is not None:
                raise self._unfit(what)
            return own[0]
        flat = all(isinstance(s, spaces.Box) and s.shape and len(s.shape) == 1 for s in own)
        if not flat or len({s.dtype for s in own}) > 1:
            each = {n: str(s) for n, s in zip(self.names, own, strict=True)}
            raise self._unfit(f"its agents' observations do not go together: {each}")
        shape, dtype = (max(s.shape[0] for s in own if s.shape),), own[0].dtype
        assert dtype is not None
        if dtype.kind == "f":
            return spaces.Box(-np.inf, np.inf, shape, dtype.type)
        limits = np.iinfo(dtype)
        return spaces.Box(limits.min, limits.max, shape, dtype.type)

    def _has_state(self) -> bool:
        """Whether the environment answers ``state()``; some do only behind a reset."""
        if not callable(getattr(self.zoo, "state", None)):
            return False
        try:
            self.zoo.reset(seed=0)
            self.shown = np.asarray(self.zoo.state())
        except (AttributeError, NotImplementedError, TypeError):  # a name only, or no state of it
            return False
        return self.shown.dtype.kind in "fiub"

    def _state_space(self) -> spaces.Box:
        """uint8 states keep their dtype and shape, others become float32."""
        if not self.global_state:
            size = sum(spaces.flatdim(space) for space in self.own)
            return spaces.Box(-np.inf, np.inf, (size,), np.float32)
        if self.shown.dtype == np.uint8:
            return spaces.Box(0, 255, self.shown.shape, np.uint8)
        return spaces.Box(-np.inf, np.inf, self.shown.shape, np.float32)

    def _unfit(self, what: str) -> ConfigError:
        return ConfigError(
            f"env.id = {self.id}: {what}; allowed are actions all Discrete from 0, "
            "MultiDiscrete of one length or Box of one shape, and observations of one space or "
            "vectors; choose another or wrap it"
        )

    # -- rows ------------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tree, dict[str, Any]]:
        self.steps = 0
        obs, _ = self.zoo.reset(seed=seed, options=options)
        return self._row(obs, self._living()), {}

    def step(self, action: Any) -> tuple[Tree, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        acted = self._living()
        chosen = {
            name: int(a)
            if isinstance(self.action_space, spaces.MultiDiscrete) and not a.ndim
            else a
            for name, a, here in zip(self.names, action, acted, strict=True)
            if here
        }
        obs, rewards, terminations, truncations, infos = self.zoo.step(chosen)
        living = self._living()
        reward = np.array([rewards.get(n, 0) for n in self.names], np.float32) * acted
        terminated = acted & [bool(terminations.get(n, False)) for n in self.names]
        truncated = acted & [bool(truncations.get(n, False)) for n in self.names]
        truncated = (truncated | (acted & ~living)) & ~terminated
        if self.limit is not None and self.steps >= self.limit:
            truncated |= acted & ~terminated
        goes_on = bool((living & ~truncated & ~terminated).any())
        cut = not goes_on and bool(truncated.any())
        team = reward.mean() if self.config.team_reward == "mean" else reward.sum()
        own = {"agent_reward": reward, "agent_terminated": terminated, "agent_truncated": truncated}
        own |= self._numbers(infos)
        alive = (acted & ~terminated) if cut else (living & ~truncated & ~terminated)
        return self._row(obs, alive), float(team), not (goes_on or cut), cut, own

    def _living(self) -> np.ndarray:
        here = set(self.zoo.agents)
        return np.array([name in here for name in self.names])

    def _row(self, obs: dict[str, Any], alive: np.ndarray) -> Tree:
        """The joint observation; agents that have none are shown zeros."""
        each = [self._padded(obs[n]) if n in obs else self.blank for n in self.names]
        agents = tree_map(lambda *x: np.stack(x), *each)
        return {"agents": agents, "alive": alive.astype(np.int8), "state": self._state(obs)}

    def _padded(self, obs: Any) -> Tree:
        """An observation in shape and dtype of the agents' space."""
        space = self.agent
        if isinstance(space, spaces.Box):
            x = np.asarray(obs)
            if x.ndim == 1 and len(space.shape) == 1 and len(x) < space.shape[0]:
                x = np.pad(x, (0, space.shape[0] - len(x)))
            obs = x.astype(space.dtype, copy=False)
        if isinstance(space, spaces.Discrete):
            obs = np.asarray(obs, space.dtype)
        if (what := problem(space, obs)) is not None:
            raise ValueError(what)
        return tree_map(np.asarray, obs)

    def _state(self, obs: dict[str, Any]) -> np.ndarray:
        if self.global_state:
            return np.asarray(self.zoo.state()).astype(self.state_space.dtype)
        parts: list[Any] = [
            spaces.flatten(s, obs[n]) if n in obs else np.zeros(spaces.flatdim(s))
            for n, s in zip(self.names, self.own, strict=True)
        ]
        return np.concatenate(parts).astype(np.float32)

    def _numbers(self, infos: dict[str, Any]) -> dict[str, Any]:
        """The numbers in agents' infos, [N] each, for collector.keep_info."""
        found = {k for info in infos.values() for k, v in info.items() if np.isscalar(v)}
        numeric = {k: [infos.get(n, {}).get(k, 0) for n in self.names] for k in found}
        arrays = {k: np.asarray(v) for k, v in numeric.items()}
        return {
            k: x.astype(np.float32) for k, x in sorted(arrays.items()) if x.dtype.kind in "fiub"
        }

    def close(self) -> None:
        self.zoo.close()


def _example(space: gym.Space[Any]) -> Tree:
    return tree_map(np.asarray, space.sample())


def _make(env_id: str, kwargs: dict[str, Any]) -> Any:
    """The parallel environment. Raises: ConfigError."""
    name = env_id.removeprefix(PREFIX)
    if "-v" in name or "/" in name:
        return _registered(env_id, name, kwargs)
    package = name.partition(".")[0]
    if not package:
        raise ConfigError(
            f"env.id = {env_id}: names no module; pettingzoo:MODULE is allowed; e.g. "
            "env.id=pettingzoo:mpe2.simple_spread_v3"
        )
    try:
        found = importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        raise _missing(env_id, name, f"there is no package {package!r}")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning)  # of the module's own
            module = importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name and name.startswith(e.name):
            raise ConfigError(
                f"env.id = {env_id}: {package} has no module {e.name!r}; allowed is "
                "pettingzoo:MODULE with a parallel_env(); fix the name"
            ) from e
        raise _missing(env_id, name, str(e)) from e
    except ImportError as e:
        raise _missing(env_id, name, str(e)) from e
    except (Exception, SystemExit) as e:  # whatever a user's module raises
        raise broken_import(env_id, name, e) from e
    if not callable(getattr(module, "parallel_env", None)):
        raise ConfigError(
            f"env.id = {env_id}: {name} has no parallel_env(); allowed are parallel environments "
            "(agents that act at once); choose another"
        )
    try:
        return module.parallel_env(**kwargs)
    except (TypeError, ValueError) as e:
        raise ConfigError(
            f"env.kwargs = {kwargs}: {name}.parallel_env does not accept them ({e}); allowed are "
            "its arguments; change env.kwargs"
        ) from e
    except ImportError as e:
        raise _missing(env_id, name, str(e)) from e


def _registered(env_id: str, name: str, kwargs: dict[str, Any]) -> Any:
    """The parallel environment of an id in PettingZoo's registry. Raises: ConfigError."""
    try:
        import pettingzoo

        make = pettingzoo.make
    except (ImportError, AttributeError) as e:
        why = "there is no pettingzoo with a registry of ids (1.27)"
        raise _missing(env_id, "pettingzoo", why) from e
    try:
        return make("parallel", name, **kwargs)
    except (TypeError, ValueError) as e:
        raise ConfigError(
            f"env.kwargs = {kwargs}: {name} does not accept them ({e}); allowed are its arguments; "
            "change env.kwargs"
        ) from e
    except Exception as e:  # its own errors: no such id, a family that is not installed
        text = " ".join(str(e).split())
        raise ConfigError(
            f"env.id = {env_id}: PettingZoo cannot make it ({text}); allowed are the ids of "
            "pettingzoo.parallel_registry; install its family or fix the name"
        ) from e


def _missing(env_id: str, name: str, why: str) -> ConfigError:
    package, _, rest = name.partition(".")
    family = rest.partition(".")[0] or "all"
    install = _INSTALL.get(package, package).format(family=family)
    return ConfigError(
        f"env.id = {env_id}: it needs a package that is not installed ({why}); "
        f"install it: pip install {install}"
    )
