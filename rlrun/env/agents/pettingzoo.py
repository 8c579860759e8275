"""Parallel environments of PettingZoo's interface as environments of joint rows.

``env.id = pettingzoo:MODULE`` names a module with ``parallel_env(**env.kwargs)``, or, with a
version as in ``sisl/pursuit-v5``, an id of PettingZoo's registry (from 1.27 on). The agents are its
``possible_agents``, in that order. Observation vectors of different lengths are padded with zeros.
The team's episode ends when no agent is left, truncated if one of the last agents was truncated.
"""

import importlib
import importlib.util
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlrun.env.catalog import import_error
from rlrun.env.contract import obs_violation, unsupported_space
from rlrun.errors import ConfigError
from rlrun.joint import JointSpace, joint_actions
from rlrun.schema import AgentsConfig
from rlrun.tree import Tree, tree_map

PREFIX = "pettingzoo:"
_INSTALL = {"pettingzoo": "'pettingzoo[{family}]'", "mpe2": "mpe2"}  # package -> pip requirement


class PettingZooEnv(gym.Env[Any, Any]):
    """One parallel environment; ``info`` has reward, terminated and truncated of every agent.

    ``alive`` [N]: the agent is in the episode, or was when it was truncated with the team.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium's own convention)

    def __init__(self, env_id: str, kwargs: dict[str, Any], agents: AgentsConfig) -> None:
        """Make it. Raises: ConfigError: unknown module or package, incompatible agents."""
        kwargs = dict(kwargs)
        self.limit: int | None = kwargs.pop("max_episode_steps", None)
        self.id, self.config, self.parallel_env = env_id, agents, _make(env_id, kwargs)
        self.names: list[str] = list(self.parallel_env.possible_agents)
        agent_spaces = [self.parallel_env.observation_space(name) for name in self.names]
        action = joint_actions([self.parallel_env.action_space(name) for name in self.names])
        if action is None:
            each = {n: str(self.parallel_env.action_space(n)) for n in self.names}
            raise self._spaces_error(f"its agents' action spaces are incompatible: {each}")
        self.action_space, self.agent_spaces = action, agent_spaces
        agent = self._agent_space(agent_spaces)
        self.zero_obs = tree_map(lambda x: np.zeros_like(x), _sample(agent))
        self.global_state = agents.state == "env" and self._has_state()
        self.agent, self.state_space = agent, self._state_space()
        self.observation_space = JointSpace(agent, self.state_space, len(self.names))
        self.steps = 0

    # -- spaces ----------------------------------------------------------------------------------

    def _agent_space(self, agent_spaces: list[gym.Space[Any]]) -> gym.Space[Any]:
        """Return one space for all agents; vectors get the length of the longest."""
        if all(space == agent_spaces[0] for space in agent_spaces):
            if (message := unsupported_space(agent_spaces[0])) is not None:
                raise self._spaces_error(message)
            return agent_spaces[0]
        flat = all(
            isinstance(s, spaces.Box) and s.shape and len(s.shape) == 1 for s in agent_spaces
        )
        if not flat or len({s.dtype for s in agent_spaces}) > 1:
            each = {n: str(s) for n, s in zip(self.names, agent_spaces, strict=True)}
            raise self._spaces_error(f"its agents' observation spaces are incompatible: {each}")
        shape, dtype = (max(s.shape[0] for s in agent_spaces if s.shape),), agent_spaces[0].dtype
        assert dtype is not None
        if dtype.kind == "f":
            return spaces.Box(-np.inf, np.inf, shape, dtype.type)
        limits = np.iinfo(dtype)
        return spaces.Box(limits.min, limits.max, shape, dtype.type)

    def _has_state(self) -> bool:
        """Return True if ``state()`` returns numbers; some environments need a reset before."""
        if not callable(getattr(self.parallel_env, "state", None)):
            return False
        try:
            self.parallel_env.reset(seed=0)
            self.example_state = np.asarray(self.parallel_env.state())
        except (AttributeError, NotImplementedError, TypeError):  # inherited but not implemented
            return False
        return self.example_state.dtype.kind in "fiub"

    def _state_space(self) -> spaces.Box:
        """Return the space of the global state; uint8 keeps its dtype, others become float32."""
        if not self.global_state:
            size = sum(spaces.flatdim(space) for space in self.agent_spaces)
            return spaces.Box(-np.inf, np.inf, (size,), np.float32)
        if self.example_state.dtype == np.uint8:
            return spaces.Box(0, 255, self.example_state.shape, np.uint8)
        return spaces.Box(-np.inf, np.inf, self.example_state.shape, np.float32)

    def _spaces_error(self, message: str) -> ConfigError:
        return ConfigError(
            f"env.id = {self.id}: {message}; allowed are actions all Discrete from 0, "
            "MultiDiscrete of one length or Box of one shape, and observations of one space or "
            "vectors; choose another or wrap it"
        )

    # -- rows ------------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tree, dict[str, Any]]:
        self.steps = 0
        obs, _ = self.parallel_env.reset(seed=seed, options=options)
        return self._row(obs, self._alive()), {}

    def step(self, action: Any) -> tuple[Tree, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        acted = self._alive()
        actions = {
            name: int(a)
            if isinstance(self.action_space, spaces.MultiDiscrete) and not a.ndim
            else a
            for name, a, active in zip(self.names, action, acted, strict=True)
            if active
        }
        obs, rewards, terminations, truncations, infos = self.parallel_env.step(actions)
        alive_after = self._alive()
        reward = np.array([rewards.get(n, 0) for n in self.names], np.float32) * acted
        terminated = acted & [bool(terminations.get(n, False)) for n in self.names]
        truncated = acted & [bool(truncations.get(n, False)) for n in self.names]
        truncated = (truncated | (acted & ~alive_after)) & ~terminated
        if self.limit is not None and self.steps >= self.limit:
            truncated |= acted & ~terminated
        continues = bool((alive_after & ~truncated & ~terminated).any())
        team_truncated = not continues and bool(truncated.any())
        team = reward.mean() if self.config.team_reward == "mean" else reward.sum()
        info = {
            "agent_reward": reward,
            "agent_terminated": terminated,
            "agent_truncated": truncated,
        }
        info |= self._numbers(infos)
        alive = (
            (acted & ~terminated) if team_truncated else (alive_after & ~truncated & ~terminated)
        )
        return (
            self._row(obs, alive),
            float(team),
            not (continues or team_truncated),
            team_truncated,
            info,
        )

    def _alive(self) -> np.ndarray:
        alive = set(self.parallel_env.agents)
        return np.array([name in alive for name in self.names])

    def _row(self, obs: dict[str, Any], alive: np.ndarray) -> Tree:
        """Return the joint observation, zeros for agents without one."""
        each = [self._padded(obs[n]) if n in obs else self.zero_obs for n in self.names]
        agents = tree_map(lambda *x: np.stack(x), *each)
        return {"agents": agents, "alive": alive.astype(np.int8), "state": self._state(obs)}

    def _padded(self, obs: Any) -> Tree:
        """Return an observation padded and cast to the agents' space."""
        space = self.agent
        if isinstance(space, spaces.Box):
            x = np.asarray(obs)
            if x.ndim == 1 and len(space.shape) == 1 and len(x) < space.shape[0]:
                x = np.pad(x, (0, space.shape[0] - len(x)))
            obs = x.astype(space.dtype, copy=False)
        if isinstance(space, spaces.Discrete):
            obs = np.asarray(obs, space.dtype)
        if (message := obs_violation(space, obs)) is not None:
            raise ValueError(message)
        return tree_map(np.asarray, obs)

    def _state(self, obs: dict[str, Any]) -> np.ndarray:
        if self.global_state:
            return np.asarray(self.parallel_env.state()).astype(self.state_space.dtype)
        parts: list[Any] = [
            spaces.flatten(s, obs[n]) if n in obs else np.zeros(spaces.flatdim(s))
            for n, s in zip(self.names, self.agent_spaces, strict=True)
        ]
        return np.concatenate(parts).astype(np.float32)

    def _numbers(self, infos: dict[str, Any]) -> dict[str, Any]:
        """Return the numbers in the agents' infos, float32 [N] each, for collector.keep_info."""
        found = {k for info in infos.values() for k, v in info.items() if np.isscalar(v)}
        numeric = {k: [infos.get(n, {}).get(k, 0) for n in self.names] for k in found}
        arrays = {k: np.asarray(v) for k, v in numeric.items()}
        return {
            k: x.astype(np.float32) for k, x in sorted(arrays.items()) if x.dtype.kind in "fiub"
        }

    def render(self) -> Any:
        return self.parallel_env.render()

    def close(self) -> None:
        self.parallel_env.close()


def _sample(space: gym.Space[Any]) -> Tree:
    return tree_map(np.asarray, space.sample())


def _make(env_id: str, kwargs: dict[str, Any]) -> Any:
    """Return the parallel environment of an env.id. Raises: ConfigError."""
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
        raise _missing_package(env_id, name, f"there is no package {package!r}")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning)  # of the module itself
            module = importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name and name.startswith(e.name):
            raise ConfigError(
                f"env.id = {env_id}: {package} has no module {e.name!r}; allowed is "
                "pettingzoo:MODULE with a parallel_env(); fix the name"
            ) from e
        raise _missing_package(env_id, name, str(e)) from e
    except ImportError as e:
        raise _missing_package(env_id, name, str(e)) from e
    except (Exception, SystemExit) as e:  # a user's module may raise anything
        raise import_error(env_id, name, e) from e
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
        raise _missing_package(env_id, name, str(e)) from e


def _registered(env_id: str, name: str, kwargs: dict[str, Any]) -> Any:
    """Return the parallel environment of an id in PettingZoo's registry. Raises: ConfigError."""
    try:
        import pettingzoo

        make = pettingzoo.make
    except (ImportError, AttributeError) as e:
        reason = "there is no pettingzoo with a registry of ids (1.27)"
        raise _missing_package(env_id, "pettingzoo", reason) from e
    try:
        return make("parallel", name, **kwargs)
    except (TypeError, ValueError) as e:
        raise ConfigError(
            f"env.kwargs = {kwargs}: {name} does not accept them ({e}); allowed are its arguments; "
            "change env.kwargs"
        ) from e
    except Exception as e:  # PettingZoo's own errors: unknown id, family not installed
        text = " ".join(str(e).split())
        raise ConfigError(
            f"env.id = {env_id}: PettingZoo cannot make it ({text}); allowed are the ids of "
            "pettingzoo.parallel_registry; install its family or fix the name"
        ) from e


def _missing_package(env_id: str, name: str, reason: str) -> ConfigError:
    package, _, rest = name.partition(".")
    family = rest.partition(".")[0] or "all"
    install = _INSTALL.get(package, package).format(family=family)
    return ConfigError(
        f"env.id = {env_id}: it needs a package that is not installed ({reason}); "
        f"install it: pip install {install}"
    )
