"""Environments of N agents: as joint rows, or with a column per agent.

``PettingZooEnv``: ``env.id = pettingzoo:MODULE`` names a module with ``parallel_env(**kwargs)``,
or, with a version as in ``sisl/pursuit-v5``, an id of PettingZoo's registry (from 1.27 on). The
agents are its ``possible_agents``, in that order. Observation vectors of different lengths are
padded with zeros. The team's episode ends when no agent is left, truncated if one of the last was.

``AgentColumns``: column e N + i is agent i of environment e. An agent whose episode ends before its
team's *waits*: its end row is followed by waiting rows (``first`` and truncated, episodes of no
steps, not valid) until the team's next episode begins or the agent joins the current one. Waiting
rows are neither counted nor learned from.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlrun.env import contract
from rlrun.env.catalog import construction_errors, import_module
from rlrun.env.rows import NotContinued, Rows, RowSource
from rlrun.errors import ConfigError, EnvError, ResourceError, RlrunError
from rlrun.schema import AgentsConfig
from rlrun.spaces import AgentSpace, JointSpace, Tree, agent_action, joint_actions, tree_map

_AGENT = ("rlrun/agent_reward", "rlrun/agent_terminated", "rlrun/agent_truncated")
"""Keys of a joint environment's info, [N] each; the team's value replaces missing ones."""


class AgentColumns(RowSource):
    """The rows of joint environments with a column per agent."""

    def __init__(self, joint: RowSource, agents: AgentsConfig, env_id: str) -> None:
        """Wrap ``joint``. Raises: ConfigError if the agents have different action spaces."""
        space = joint.single_observation_space
        assert isinstance(space, JointSpace)
        action = agent_action(joint.single_action_space)
        if action is None:
            mixed = np.ndim(getattr(joint.single_action_space, "nvec", [[]])) == 1
            others = "policy=qmix or policy=vdn (agents=joint), or " if mixed else ""
            raise ConfigError(
                f"env.id = {env_id}: its agents have different action spaces "
                f"({joint.single_action_space}); allowed are agents of one action space; choose "
                f"{others}another environment"
            )
        self.joint, self.agents, self.env_id = joint, space.num_agents, env_id
        self.num_envs = joint.num_envs * self.agents
        self.observe_ids = agents.agent_id or agents.name == "separate"
        single = AgentSpace(space.agent, self.agents) if self.observe_ids else space.agent
        self.single_observation_space: gym.Space[Any] = single
        self.single_action_space: gym.Space[Any] = action
        self.agent_ids = np.tile(np.eye(self.agents, dtype=np.float32), (joint.num_envs, 1))
        self._team_done = np.zeros(joint.num_envs, np.bool_)  # the team's next step is a reset
        self._in_episode = np.zeros((joint.num_envs, self.agents), np.bool_)  # the current one

    def reset(self, seed: int) -> Tree:
        obs = self.joint.reset(seed)
        self._team_done = np.zeros(len(self._team_done), np.bool_)
        self._in_episode = np.array(obs["alive"], np.bool_)
        self._require_all_alive(self._in_episode)
        return self._columns(obs["agents"])

    def step(self, action: np.ndarray, number: int) -> Rows:
        joint = action.reshape(len(self._team_done), self.agents, *action.shape[1:])
        obs, *team, info = self.joint.step(joint, number)
        self._follow()
        each = (info.get(key, np.asarray(x)[:, None]) for key, x in zip(_AGENT, team, strict=True))
        acted, resets = self._in_episode & ~self._team_done[:, None], self._team_done
        self._team_done = np.asarray(team[1], bool) | np.asarray(team[2], bool)
        reward, terminated, truncated = (np.where(acted, x, 0) for x in each)
        terminated = terminated.astype(bool)
        ended = terminated | truncated.astype(bool) | (acted & self._team_done[:, None])
        truncated = ended & ~terminated
        alive = np.array(obs["alive"], np.bool_)
        self._require_all_alive(alive[resets])
        # Agents that did not act wait, unless their next row starts an episode.
        joins = ~acted & alive & ~self._team_done[:, None]
        truncated |= ~acted & ~joins
        self._in_episode = (acted & ~ended) | joins
        flat = (x.reshape(-1) for x in (reward.astype(np.float32), terminated, truncated))
        return self._columns(obs["agents"]), *flat, self._kept(info)

    def _columns(self, obs: Tree) -> Tree:
        """Reshape observations [E, N, *O] to columns. Add the one-hot agent id if configured."""
        flat = tree_map(lambda x: x.reshape(self.num_envs, *x.shape[2:]), obs)
        return {"agent": self.agent_ids, "observation": flat} if self.observe_ids else flat

    def _kept(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return the numbers [E N, K] kept of the infos."""
        if (numbers := info.get(contract.KEPT)) is None:
            return {}
        if numbers.ndim == 2:  # [E, K]: the environments know of no agents
            numbers = np.repeat(numbers[:, None], self.agents, 1)
        return {contract.KEPT: numbers.reshape(self.num_envs, -1)}

    def _require_all_alive(self, alive: np.ndarray) -> None:
        if not alive.all():
            raise EnvError(
                f"env.id = {self.env_id}: not all agents are alive when an episode begins; allowed "
                "are agents that may leave early; set agents=joint or choose another environment"
            )

    def state_dict(self) -> dict[str, Any]:
        columns = {"team_done": self._team_done.copy(), "in_episode": self._in_episode.copy()}
        state = {"joint": self.joint.state_dict(), **columns}
        self._follow()
        return state

    def load_state_dict(self, state: dict[str, Any], *, seed: int, steps: int) -> NotContinued:
        reasons, lost = self.joint.load_state_dict(state["joint"], seed=seed, steps=steps)
        self._follow()
        self._team_done = np.array(state["team_done"], np.bool_) | lost
        self._in_episode = np.array(state["in_episode"], np.bool_)
        return reasons, np.repeat(lost, self.agents)

    def _follow(self) -> None:
        self.inexact, self.restarts = self.joint.inexact, self.joint.restarts
        lost = self.joint.restarted
        self.restarted = None if lost is None else np.repeat(lost, self.agents)

    def close(self) -> None:
        self.joint.close()


PREFIX = "pettingzoo:"
_RETURNED = {
    "reset": ("observations", "infos"),
    "step": ("observations", "rewards", "terminations", "truncations", "infos"),
}
_INSTALL = {"pettingzoo": "'pettingzoo[{family}]'", "mpe2": "mpe2"}  # package -> pip requirement


class PettingZooEnv(gym.Env[Any, Any]):
    """One parallel environment. ``info`` has reward, terminated and truncated of every agent.

    ``alive`` [N]: the agent is in the episode, or was when it was truncated with the team.
    """

    def __init__(
        self,
        env_id: str,
        kwargs: dict[str, Any],
        agents: AgentsConfig,
        keep_info: tuple[str, ...] | None = (),
    ) -> None:
        """Make the environment. ``keep_info``: keys of the agents' infos whose values are kept.

        Raises: ConfigError for an unknown module or package, or incompatible agents.
        """
        kwargs, self.keep_info = dict(kwargs), keep_info or ()
        self.limit: int | None = kwargs.pop("max_episode_steps", None)
        self.id, self.config, self.parallel_env = env_id, agents, _make(env_id, kwargs)
        self.metadata = dict(getattr(self.parallel_env, "metadata", None) or {})
        self.names: list[str] = list(self.parallel_env.possible_agents)
        agent_spaces = [self.parallel_env.observation_space(name) for name in self.names]
        action = joint_actions([self.parallel_env.action_space(name) for name in self.names])
        if action is None:
            raise self._incompatible("action", map(self.parallel_env.action_space, self.names))
        self.action_space, self.agent_spaces = action, agent_spaces
        validators = [contract.ObservationValidator(space, floats=False) for space in agent_spaces]
        self.violations = [validator.violation for validator in validators]  # in no saved state
        agent = self._agent_space(agent_spaces)
        self.zero_obs = tree_map(np.zeros_like, agent.sample())
        example = self._example_state() if agents.state == "env" else None
        self.global_state = example is not None
        self.agent, self.state_space = agent, self._state_space(example)
        self.observation_space = JointSpace(agent, self.state_space, len(self.names))
        self.steps = 0

    # -- spaces ----------------------------------------------------------------------------------

    def _agent_space(self, agent_spaces: list[gym.Space[Any]]) -> gym.Space[Any]:
        """Return one space for all agents. Vectors get the length of the longest."""
        if all(space == agent_spaces[0] for space in agent_spaces):
            if (message := contract.unsupported_space(agent_spaces[0])) is not None:
                raise self._spaces_error(message)
            return agent_spaces[0]
        vectors = [s for s in agent_spaces if isinstance(s, spaces.Box) and len(s.shape) == 1]
        if len(vectors) < len(agent_spaces) or len({s.dtype for s in vectors}) > 1:
            raise self._incompatible("observation", agent_spaces)
        shape, dtype = (max(s.shape[0] for s in vectors),), vectors[0].dtype
        if dtype.kind == "f":
            return spaces.Box(-np.inf, np.inf, shape, dtype.type)
        limits = np.iinfo(dtype)
        return spaces.Box(limits.min, limits.max, shape, dtype.type)

    def _example_state(self) -> np.ndarray | None:
        """Return a ``state()`` of numbers, or None. Some environments need a reset before."""
        if not callable(getattr(self.parallel_env, "state", None)):
            return None
        try:
            self.parallel_env.reset(seed=0)
            state = np.asarray(self.parallel_env.state())
        except (AttributeError, NotImplementedError, TypeError):  # inherited but not implemented
            return None
        return state if state.dtype.kind in "fiub" else None

    def _state_space(self, example: np.ndarray | None) -> spaces.Box:
        """Return the space of the global state. uint8 keeps its dtype, others become float32."""
        if example is not None and example.dtype == np.uint8:
            return spaces.Box(0, 255, example.shape, np.uint8)
        observed = (sum(spaces.flatdim(space) for space in self.agent_spaces),)
        shape = observed if example is None else example.shape
        return spaces.Box(-np.inf, np.inf, shape, np.float32)

    def _incompatible(self, kind: str, each: Iterable[gym.Space[Any]]) -> ConfigError:
        named = dict(zip(self.names, map(str, each), strict=True))
        return self._spaces_error(f"its agents' {kind} spaces are incompatible: {named}")

    def _spaces_error(self, message: str) -> ConfigError:
        return ConfigError(
            f"env.id = {self.id}: {message}; allowed are actions all Discrete from 0, MultiDiscrete"
            " of one length or Box of one shape, observations of one space or vectors; wrap it"
        )

    # -- rows ------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: Any = None) -> contract.ResetResult:
        self.steps = 0
        obs, infos = self._results("reset", self.parallel_env.reset(seed=seed, options=options))
        alive = self._alive()
        self._require_each("observation", obs, alive)
        return self._row(obs, alive), self._kept(infos)

    def step(self, action: Any) -> tuple[Tree, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        acted = self._alive()
        numbers = isinstance(self.action_space, spaces.MultiDiscrete) and action.ndim == 1
        actions = {
            self.names[i]: int(action[i]) if numbers else action[i] for i in np.flatnonzero(acted)
        }
        obs, *paid, infos = self._results("step", self.parallel_env.step(actions))
        alive = self._alive()
        reward, terminated, truncated = self._paid(paid, acted)
        truncated = (truncated | (acted & ~alive)) & ~terminated
        if self.limit is not None and self.steps >= self.limit:
            truncated |= acted & ~terminated
        self._require_each("observation", obs, alive | truncated)
        goes_on = alive & ~truncated & ~terminated
        team_truncated = bool(truncated.any() and not goes_on.any())
        team_terminated = not (goes_on.any() or team_truncated)
        team = reward.mean() if self.config.team_reward == "mean" else reward.sum()
        info = dict(zip(_AGENT, (reward, terminated, truncated), strict=True)) | self._kept(infos)
        row = self._row(obs, acted & ~terminated if team_truncated else goes_on)
        return row, float(team), team_terminated, team_truncated, info

    def _alive(self) -> np.ndarray:
        alive = set(self.parallel_env.agents)
        return np.array([name in alive for name in self.names])

    def _row(self, obs: Mapping[str, Any], alive: np.ndarray) -> Tree:
        """Return the joint observation, with zeros for agents without one."""
        each = [
            self._padded(i, obs[name]) if name in obs else self.zero_obs
            for i, name in enumerate(self.names)
        ]
        agents = tree_map(lambda *x: np.stack(x), *each)
        return {"agents": agents, "alive": alive.astype(np.int8), "state": self._state(obs)}

    def _padded(self, agent: int, obs: Any) -> Tree:
        """Return an agent's observation padded and cast to the common space.

        Floats may have another size than declared, integers another dtype that holds them.

        Raises: ContractViolation if it is not in the agent's space.
        """
        space = self.agent_spaces[agent]
        if isinstance(space, spaces.Box | spaces.Discrete):
            x = np.asarray(obs)
            kinds = "biuf" if space.dtype is not None and space.dtype.kind == "f" else "biu"
            cast = x.astype(space.dtype) if x.dtype.kind in kinds else x
            obs = cast if cast.dtype.kind == "f" or (cast == x).all() else x
        self._require(self.violations[agent](obs), self.names[agent])
        if self.agent is space or self.agent == space:
            return tree_map(np.asarray, obs)
        x = np.asarray(obs)
        return np.pad(x, (0, self.zero_obs.shape[0] - len(x)))

    def _state(self, obs: Mapping[str, Any]) -> np.ndarray:
        if self.global_state:
            return np.asarray(self.parallel_env.state()).astype(self.state_space.dtype)
        parts: list[Any] = [
            spaces.flatten(s, obs[n]) if n in obs else np.zeros(spaces.flatdim(s))
            for n, s in zip(self.names, self.agent_spaces, strict=True)
        ]
        return np.concatenate(parts).astype(np.float32)

    # -- contract --------------------------------------------------------------------------------

    def _require(self, message: str | None, agent: str) -> None:
        """Raise ContractViolation if ``message``, about ``agent``, is not None."""
        if message is not None:
            raise contract.ContractViolation(f"agent {agent}: {message}")

    def _results(self, call: str, result: Any) -> Sequence[Mapping[str, Any]]:
        """Return what ``call`` returned: dicts with agents as keys. Raises: ContractViolation."""
        names = _RETURNED[call]
        if not isinstance(result, tuple | list) or len(result) != len(names):
            raise contract.ContractViolation(f"{call}() must return ({', '.join(names)})")
        for name, value in zip(names, result, strict=True):
            if not isinstance(value, Mapping):
                text = f"{name} are a {type(value).__name__}; allowed is a dict with agents as keys"
                raise contract.ContractViolation(text)
        return result

    def _require_each(self, name: str, by_agent: Mapping[str, Any], agents: np.ndarray) -> None:
        """Raise if one of ``agents`` [N] has no entry, which would be learned from as zeros."""
        for agent in (self.names[i] for i in np.flatnonzero(agents)):
            if agent not in by_agent:
                text = f"it is in the episode and has no {name}; every agent must have one"
                self._require(text, agent)

    def _paid(
        self, results: Sequence[Mapping[str, Any]], acted: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return reward float32, terminated and truncated bool [N], 0 for agents that did not act.

        ``results``: dicts of the three; a missing flag means False.
        """
        rewards, *flags = results
        self._require_each("reward", rewards, acted)
        paid = np.zeros((3, len(self.names)), np.float32)
        for i in np.flatnonzero(acted):
            agent = self.names[i]
            self._require(contract.reward_violation(rewards[agent]), agent)
            ends = [flag.get(agent, False) for flag in flags]
            for name, end in zip(("terminated", "truncated"), ends, strict=True):
                self._require(contract.flag_violation(name, end), agent)
            paid[:, i] = rewards[agent], *ends
        return paid[0], paid[1] != 0, paid[2] != 0

    def _kept(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        """Return the numbers kept of the agents' infos: [N, K], or their mean [K] in joint rows."""
        if not self.keep_info:
            return {}
        numbers = np.zeros((len(self.names), len(self.keep_info)), np.float32)
        present = np.zeros(numbers.shape, np.bool_)
        for i, agent in enumerate(self.names):
            info = infos.get(agent, {})
            self._require(contract.info_violation(info), agent)
            numbers[i], message = contract.kept_numbers(info, self.keep_info)
            self._require(message, agent)
            present[i] = [key in info for key in self.keep_info]
        if self.config.name == "joint":
            numbers = (numbers.sum(0) / np.maximum(present.sum(0), 1)).astype(np.float32)
        return {contract.KEPT: numbers}

    def render(self) -> Any:
        return self.parallel_env.render()

    def close(self) -> None:
        self.parallel_env.close()


def _make(env_id: str, kwargs: dict[str, Any]) -> Any:
    """Return the parallel environment of an env.id. Raises: ConfigError."""
    name = env_id.removeprefix(PREFIX)
    missing = partial(_missing_package, env_id, name)
    if "-v" in name or "/" in name:  # an id of PettingZoo's registry
        with construction_errors(env_id, kwargs, name, missing):
            import pettingzoo

            if not hasattr(pettingzoo, "make"):
                raise ImportError("pettingzoo has no registry of ids before version 1.27")
            return pettingzoo.make("parallel", name, **kwargs)
    if not name.partition(".")[0]:
        raise ConfigError(
            f"env.id = {env_id}: names no module; pettingzoo:MODULE is allowed; e.g. "
            "env.id=pettingzoo:mpe2.simple_spread_v3"
        )
    try:
        module = import_module(env_id, name)
    except ImportError as e:
        raise missing(e) from e
    if not callable(getattr(module, "parallel_env", None)):
        raise ConfigError(
            f"env.id = {env_id}: {name} has no parallel_env(); allowed are parallel environments "
            "(agents that act at once); choose another"
        )
    with construction_errors(env_id, kwargs, f"{name}.parallel_env", missing):
        return module.parallel_env(**kwargs)


def _missing_package(env_id: str, name: str, error: Exception) -> RlrunError:
    """Return the error for a module ``name``, or a module it imports, that cannot be imported."""
    lacks = getattr(error, "name", None) or ""
    if "." in lacks and f"{name}.".startswith(f"{lacks}."):
        return ConfigError(
            f"env.id = {env_id}: there is no module {lacks!r}; allowed is pettingzoo:MODULE with a "
            "parallel_env(); fix the name"
        )
    package = "pettingzoo" if "/" in name else name.partition(".")[0]
    if package in _INSTALL:
        family = name.removeprefix("pettingzoo.").replace("/", ".").partition(".")[0]
        return ResourceError(
            f"env.id = {env_id}: it needs a package that is not installed ({error}); "
            f"install it: pip install {_INSTALL[package].format(family=family)}"
        )
    return ConfigError(
        f"env.id = {env_id}: module {name} cannot be imported ({error}); allowed is a module with "
        "a parallel_env(), in the working directory or installed; fix the name, or add its needs"
    )
