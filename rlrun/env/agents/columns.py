"""Independent learners: E environments of N agents as E x N columns.

Column e N + i is agent i of environment e. An agent whose episode ends before its team's *waits*:
its end row is followed by waiting rows (``first`` and truncated, episodes of no steps, not valid)
until the team's next episode begins or the agent joins the current one. Waiting rows are neither
counted nor learned from.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from rlrun.env.contract import KEPT
from rlrun.env.diagnostic.vector import NEXT_STEP_METADATA
from rlrun.errors import ConfigError, EnvError
from rlrun.joint import AgentSpace, JointSpace, agent_action
from rlrun.schema import AgentsConfig
from rlrun.tree import Tree, tree_map

AGENT_REWARD = "rlrun/agent_reward"
AGENT_TERMINATED = "rlrun/agent_terminated"
AGENT_TRUNCATED = "rlrun/agent_truncated"
"""Keys of a joint environment's info, [N] each; the team's value replaces missing ones."""


class AgentColumns(VectorEnv[Any, Any, Any]):
    """One column per agent of a NEXT_STEP vector environment of joint rows."""

    metadata = NEXT_STEP_METADATA

    def __init__(
        self,
        joint: VectorEnv[Any, Any, Any],
        agents: AgentsConfig,
        env_id: str,
        keep_info: tuple[str, ...] | None = None,
    ) -> None:
        """Wrap ``joint``. Raises: ConfigError: the agents have different action spaces.

        ``keep_info``: the keys of its info that are passed on; None: its environments are
        ``checked.CheckedEnv``, which read infos themselves.
        """
        space = joint.single_observation_space
        assert isinstance(space, JointSpace)
        action = agent_action(joint.single_action_space)
        if action is None:
            mixed = np.ndim(getattr(joint.single_action_space, "nvec", [[]])) == 1
            others = "policy=qmix or policy=vdn (agents=joint), or " if mixed else ""
            raise ConfigError(
                f"env.id = {env_id}: its agents differ in their actions "
                f"({joint.single_action_space}); allowed are agents of one action space; choose "
                f"{others}another environment"
            )
        self.joint, self.agents, self.env_id = joint, space.num_agents, env_id
        self.keep_info = keep_info
        self.num_envs = joint.num_envs * self.agents
        self.observe_ids = agents.agent_id or agents.name == "separate"
        single = AgentSpace(space.agent, self.agents) if self.observe_ids else space.agent
        self.single_observation_space: gym.Space[Any] = single
        self.single_action_space: gym.Space[Any] = action
        self.observation_space = batch_space(single, self.num_envs)
        self.action_space = batch_space(action, self.num_envs)
        self.agent_ids = np.tile(np.eye(self.agents, dtype=np.float32), (joint.num_envs, 1))
        self._team_done = np.zeros(joint.num_envs, np.bool_)  # the team's next step is a reset
        self._in_episode = np.zeros(
            (joint.num_envs, self.agents), np.bool_
        )  # in the current episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tree, dict[str, Any]]:
        obs, info = self.joint.reset(seed=seed, options=options)
        self._team_done = np.zeros(len(self._team_done), np.bool_)
        self._in_episode = np.array(obs["alive"], np.bool_)
        self._require_all_alive(self._in_episode)
        return self._columns(obs["agents"]), self._info(info)

    def step(
        self, actions: np.ndarray
    ) -> tuple[Tree, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        joint = actions.reshape(len(self._team_done), self.agents, *actions.shape[1:])
        obs, reward, team_terminated, team_truncated, info = self.joint.step(joint)
        team_terminated, team_truncated = (
            np.asarray(team_terminated, bool),
            np.asarray(team_truncated, bool),
        )
        acted, resets = self._in_episode & ~self._team_done[:, None], self._team_done
        rewards = np.where(acted, self._per_agent(info, AGENT_REWARD, reward), 0)
        terminated = acted & self._per_agent(info, AGENT_TERMINATED, team_terminated)
        truncated = (
            acted
            & ~terminated
            & (self._per_agent(info, AGENT_TRUNCATED, team_truncated) | team_truncated[:, None])
        )
        truncated |= acted & ~terminated & team_terminated[:, None]  # only the team's flag was set
        alive = np.array(obs["alive"], np.bool_)
        self._require_all_alive(alive[resets])
        self._team_done = team_terminated | team_truncated
        ended = terminated | truncated
        # Agents that did not act wait, unless their next row starts an episode.
        joins = ~acted & alive & ~self._team_done[:, None]
        truncated |= ~acted & ~joins & ~(resets[:, None] & alive)
        self._in_episode = (acted & ~ended) | joins
        flat = (x.reshape(-1) for x in (rewards.astype(np.float32), terminated, truncated))
        return self._columns(obs["agents"]), *flat, self._info(info)

    def _per_agent(self, info: dict[str, Any], key: str, team: np.ndarray) -> np.ndarray:
        """Return info[key] [E, N], or the team's value [E] repeated for every agent."""
        if self.keep_info is None and key in info:
            return np.asarray(info[key])
        return np.repeat(np.asarray(team)[:, None], self.agents, 1)

    def _columns(self, obs: Tree) -> Tree:
        """Reshape observations [E, N, *O] to columns; add the one-hot agent id where configured."""
        flat = tree_map(lambda x: x.reshape(self.num_envs, *x.shape[2:]), obs)
        return {"agent": self.agent_ids, "observation": flat} if self.observe_ids else flat

    def _info(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return what is kept of ``info`` per column: values [E, N] flattened, [E] repeated."""
        if self.keep_info is None:
            if (numbers := info.get(KEPT)) is None:
                return {}
            if numbers.ndim == 2:  # [E, K]: the environments know of no agents
                numbers = np.repeat(numbers[:, None], self.agents, 1)
            return {KEPT: numbers.reshape(self.num_envs, -1)}
        columns = {}
        for key in (k for name in self.keep_info for k in (name, f"_{name}") if k in info):
            values = np.asarray(info[key])
            own = values.ndim > 1
            columns[key] = values.reshape(-1) if own else np.repeat(values, self.agents)
        return columns

    def _require_all_alive(self, alive: np.ndarray) -> None:
        if not alive.all():
            raise EnvError(
                f"env.id = {self.env_id}: not all agents are alive when an episode begins; allowed "
                "are agents that may leave early; set agents=joint or choose another environment"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return what is not the joint environment's."""
        return {"team_done": self._team_done.copy(), "in_episode": self._in_episode.copy()}

    def load_state_dict(self, state: dict[str, Any], lost: np.ndarray) -> None:
        """Continue from ``state``; the next step of the environments ``lost`` [E] is a reset."""
        self._team_done = np.array(state["team_done"], np.bool_) | lost
        self._in_episode = np.array(state["in_episode"], np.bool_)

    def close_extras(self, **kwargs: Any) -> None:
        self.joint.close()
