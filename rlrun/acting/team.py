"""Acting for a team of agents with one Q-network."""

from typing import Any

import numpy as np

from rlrun.acting.actor import Chosen, NetActor
from rlrun.acting.step import Outputs
from rlrun.functional.explore import team_epsilon_greedy
from rlrun.functional.masks import MASK
from rlrun.nets.team import TeamNet
from rlrun.schema import QMIXConfig
from rlrun.types import Tree, tree_map


class TeamActor(NetActor):
    """Epsilon-greedy actions of every agent from its own observations."""

    def __init__(
        self, net: TeamNet, config: QMIXConfig, generator: np.random.Generator, *, num_envs: int
    ) -> None:
        agents = num_envs * net.num_agents
        super().__init__(net.agents, config, generator, num_envs=agents)
        self.num_envs, self.num_agents, self.masked = num_envs, net.num_agents, net.masked
        self.available = net.available.numpy(force=True)
        eye = np.eye(net.num_agents, dtype=np.float32)
        self.agent_id = np.tile(eye, (num_envs, 1)) if net.agent_id else None

    def initial_state(self) -> Tree:
        """Return the state [E, N, ...] before an episode's first row."""
        return self._per_team(super().initial_state())

    def step(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> Outputs:
        """Return action values [E, N, A] and the next state [E, N, ...]; ``action`` [E, N]."""
        agent_obs = tree_map(self._per_agent, obs["agents"])
        if self.agent_id is not None:
            agent_obs = {"agent": self.agent_id, "observation": agent_obs}
        first, reward = (np.repeat(x, self.num_agents) for x in (first, reward))
        state = tree_map(self._per_agent, state)
        q, state = super().step(agent_obs, first, self._per_agent(action), reward, state)
        return self._per_team(q), self._per_team(state)

    def choose(self, outputs: np.ndarray, obs: Tree, explore: np.ndarray | None) -> Chosen:
        allowed = np.broadcast_to(self.available, outputs.shape)
        if self.masked:
            unmasked = allowed & (obs["agents"][MASK] > 0)
            allowed = np.where(unmasked.any(-1, keepdims=True), unmasked, allowed)
        return team_epsilon_greedy(outputs, allowed, explore, self.generator), {}

    def _per_agent(self, x: np.ndarray) -> np.ndarray:
        """[E, N, ...] -> [E N, ...]."""
        return x.reshape(self.num_envs * self.num_agents, *x.shape[2:])

    def _per_team(self, tree: Tree) -> Any:
        """[E N, ...] -> [E, N, ...]."""
        return tree_map(lambda x: x.reshape(self.num_envs, self.num_agents, *x.shape[1:]), tree)
