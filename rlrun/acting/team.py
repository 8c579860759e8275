"""Acting for a team of agents with one Q-network."""

from typing import Any

import numpy as np

from rlrun.acting.step import shape_reward
from rlrun.acting.value import QNetStep, make_qnet_step
from rlrun.functional.explore import team_epsilon_greedy
from rlrun.nets.team import MASK, TeamNet
from rlrun.schema import QMIXConfig
from rlrun.types import Act, Tree, tree_map


class TeamActor:
    """Epsilon-greedy actions of every agent from its own observations."""

    def __init__(
        self, net: TeamNet, config: QMIXConfig, generator: np.random.Generator, *, num_envs: int
    ) -> None:
        self.num_envs, self.num_agents, self.generator = num_envs, net.num_agents, generator
        self.agents: QNetStep = make_qnet_step(net.agents, num_envs * net.num_agents)
        self.available, self.masked = net.available.numpy(force=True), net.masked
        eye = np.eye(net.num_agents, dtype=np.float32)
        self.agent_id = np.tile(eye, (num_envs, 1)) if net.agent_id else None
        self.scale, self.clip = config.reward_scale, config.reward_clip
        self.extras: dict[str, np.ndarray] = {}

    def refresh(self) -> None:
        self.agents.refresh()

    def initial_state(self) -> Tree:
        """Return the state [E, N, ...] before an episode's first row."""
        return self._per_team(self.agents.initial_state())

    def step(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        """Return action values [E, N, A] and the next state [E, N, ...]; ``action`` [E, N]."""
        agent_obs = tree_map(self._per_agent, obs["agents"])
        if self.agent_id is not None:
            agent_obs = {"agent": self.agent_id, "observation": agent_obs}
        first, reward = (np.repeat(x, self.num_agents) for x in (first, reward))
        q, state = self.agents(
            agent_obs, first, self._per_agent(action), reward, tree_map(self._per_agent, state)
        )
        return self._per_team(q), self._per_team(state)

    def act(
        self,
        obs: Tree,
        first: np.ndarray,
        prev_action: np.ndarray,
        prev_reward: np.ndarray,
        state: Tree,
        *,
        explore: np.ndarray | None,
    ) -> Act:
        reward = shape_reward(prev_reward, self.scale, self.clip)
        q, state = self.step(obs, first, prev_action, reward, state)
        allowed = np.broadcast_to(self.available, q.shape)
        if self.masked:
            unmasked = allowed & (obs["agents"][MASK] > 0)
            allowed = np.where(unmasked.any(-1, keepdims=True), unmasked, allowed)
        return Act(team_epsilon_greedy(q, allowed, explore, self.generator), {}, state)

    def _per_agent(self, x: np.ndarray) -> np.ndarray:
        """[E, N, ...] -> [E N, ...]."""
        return x.reshape(self.num_envs * self.num_agents, *x.shape[2:])

    def _per_team(self, tree: Tree) -> Any:
        """[E N, ...] -> [E, N, ...]."""
        return tree_map(lambda x: x.reshape(self.num_envs, self.num_agents, *x.shape[1:]), tree)
