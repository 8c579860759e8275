"""Independent learners: E environments of N agents as E x N columns, environment by environment.

Column e N + i is agent i of environment e. An agent whose episode is over while its team's goes on
*waits*: its end row is followed by rows that open nothing and are not valid (``first``, and an
episode of no steps: truncated, so that the next row is not valid either) until the team's next
episode begins, or it enters this one. Nothing downstream counts or learns such rows.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from rlrun.env.diagnostic.lockstep import NEXT_STEP_METADATA
from rlrun.errors import ConfigError, EnvError
from rlrun.joint import AgentSpace, JointSpace, agent_action
from rlrun.schema import AgentsConfig
from rlrun.tree import Tree, tree_map

OWN = ("agent_reward", "agent_terminated", "agent_truncated")
"""Keys of a joint environment's info, [N] each; without them the team's value is every agent's."""


class Columns(VectorEnv[Any, Any, Any]):
    """The agents of a NEXT_STEP vector environment of joint rows, each with a column of its own."""

    metadata = NEXT_STEP_METADATA

    def __init__(self, joint: VectorEnv[Any, Any, Any], agents: AgentsConfig, env_id: str) -> None:
        """Raises: ConfigError: the agents differ in their actions."""
        space = joint.single_observation_space
        assert isinstance(space, JointSpace)
        action = agent_action(joint.single_action_space)
        if action is None:
            mixed = np.ndim(getattr(joint.single_action_space, "nvec", [[]])) == 1
            others = "policy=qmix or policy=vdn (agents=joint), or " if mixed else ""
            raise ConfigError(
                f"env.id = {env_id}: its agents differ in their actions "
                f"({joint.single_action_space}); allowed are agents that act alike; choose "
                f"{others}another environment"
            )
        self.joint, self.agents, self.env_id = joint, space.num_agents, env_id
        self.num_envs = joint.num_envs * self.agents
        self.numbered = agents.agent_id or agents.name == "separate"
        single = AgentSpace(space.agent, self.agents) if self.numbered else space.agent
        self.single_observation_space: gym.Space[Any] = single
        self.single_action_space: gym.Space[Any] = action
        self.observation_space = batch_space(single, self.num_envs)
        self.action_space = batch_space(action, self.num_envs)
        self.number = np.tile(np.eye(self.agents, dtype=np.float32), (joint.num_envs, 1))
        self._over = np.zeros(joint.num_envs, np.bool_)  # the team's next step is a reset
        self._here = np.zeros((joint.num_envs, self.agents), np.bool_)  # in the open episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tree, dict[str, Any]]:
        obs, info = self.joint.reset(seed=seed, options=options)
        self._over = np.zeros(len(self._over), np.bool_)
        self._here = np.array(obs["alive"], np.bool_)
        self._need_all(self._here)
        return self._columns(obs["agents"]), self._info(info)

    def step(
        self, actions: np.ndarray
    ) -> tuple[Tree, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        joint = actions.reshape(len(self._over), self.agents, *actions.shape[1:])
        obs, reward, over, cut, info = self.joint.step(joint)
        over, cut = np.asarray(over, bool), np.asarray(cut, bool)
        acted, opens = self._here & ~self._over[:, None], self._over
        rewards = np.where(acted, self._own(info, "agent_reward", reward), 0)
        terminated = acted & self._own(info, "agent_terminated", over)
        truncated = acted & ~terminated & (self._own(info, "agent_truncated", cut) | cut[:, None])
        truncated |= acted & ~terminated & over[:, None]  # the team has gone on without a word
        alive = np.array(obs["alive"], np.bool_)
        self._need_all(alive[opens])
        self._over = over | cut
        ended = terminated | truncated
        # Who did not act waits, unless its next row opens an episode.
        enters = ~acted & alive & ~self._over[:, None]
        truncated |= ~acted & ~enters & ~(opens[:, None] & alive)
        self._here = (acted & ~ended) | enters
        flat = (x.reshape(-1) for x in (rewards.astype(np.float32), terminated, truncated))
        return self._columns(obs["agents"]), *flat, self._info(info)

    def _own(self, info: dict[str, Any], key: str, team: np.ndarray) -> np.ndarray:
        """[E, N] of ``info``, or the team's [E] for every agent."""
        if key in info:
            return np.asarray(info[key])
        return np.repeat(np.asarray(team)[:, None], self.agents, 1)

    def _columns(self, obs: Tree) -> Tree:
        """Observations [E, N, *O] as columns, with the agent's number where it is asked for."""
        flat = tree_map(lambda x: x.reshape(self.num_envs, *x.shape[2:]), obs)
        return {"agent": self.number, "observation": flat} if self.numbered else flat

    def _info(self, info: dict[str, Any]) -> dict[str, Any]:
        """Numbers of an environment for all of its agents, numbers of agents as they are."""
        found = {k: np.asarray(v) for k, v in info.items() if k.removeprefix("_") not in OWN}
        own = (len(self._over), self.agents)
        kept = {k: x.reshape(-1) for k, x in found.items() if x.shape == own}
        team = {k: x for k, x in found.items() if x.shape == own[:1]}
        return kept | {k: np.repeat(x, self.agents) for k, x in team.items()}

    def _need_all(self, alive: np.ndarray) -> None:
        if not alive.all():
            raise EnvError(
                f"env.id = {self.env_id}: not all agents are there when an episode begins; allowed "
                "are agents that may leave early; set agents=joint or choose another environment"
            )

    def close_extras(self, **kwargs: Any) -> None:
        self.joint.close()
