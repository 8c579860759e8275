"""Acting for a team of agents with one Q-network."""

from typing import Any

import numpy as np

from rlrun.acting.step import QNetStep, make_qnet_step
from rlrun.functional.explore import team_epsilon_greedy
from rlrun.nets.team import MASK, TeamNet
from rlrun.schema import QMIXConfig
from rlrun.types import Act, Tree, tree_map


class TeamActor:
    """Greedy actions of every agent from what it sees alone, or uniform ones with a probability."""

    def __init__(
        self, net: TeamNet, config: QMIXConfig, generator: np.random.Generator, *, num_envs: int
    ) -> None:
        self.num_envs, self.size, self.generator = num_envs, net.size, generator
        self.columns: QNetStep = make_qnet_step(net.agents, num_envs * net.size)
        self.refresh = self.columns.refresh
        self.counts, self.masked = net.counts.numpy(force=True), net.masked
        eye = np.eye(net.size, dtype=np.float32)
        self.number = np.tile(eye, (num_envs, 1)) if net.numbered else None
        self.scale, self.clip = config.reward_scale, config.reward_clip
        self.extras: dict[str, np.ndarray] = {}

    def initial_state(self) -> Tree:
        """See ``Actor``; [E, N, ...]."""
        return self._teams(self.columns.initial_state())

    def step(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> tuple[np.ndarray, Tree]:
        """Action values [E, N, A] and the state behind the row; see ``rlrun.acting.step.Step``."""
        seen = tree_map(self._flat, obs["agents"])
        if self.number is not None:
            seen = {"agent": self.number, "observation": seen}
        first, reward = (np.repeat(x, self.size) for x in (first, reward))
        q, state = self.columns(
            seen, first, self._flat(action), reward, tree_map(self._flat, state)
        )
        return self._teams(q), self._teams(state)

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
        """See ``Actor``."""
        reward = prev_reward * np.float32(self.scale)
        if self.clip is not None:
            reward = np.clip(reward, -self.clip, self.clip)
        q, state = self.step(obs, first, prev_action, reward, state)
        allowed = np.broadcast_to(self.counts, q.shape)
        if self.masked:
            some = allowed & (obs["agents"][MASK] > 0)
            allowed = np.where(some.any(-1, keepdims=True), some, allowed)
        return Act(team_epsilon_greedy(q, allowed, explore, self.generator), {}, state)

    def _flat(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(self.num_envs * self.size, *x.shape[2:])

    def _teams(self, tree: Tree) -> Any:
        return tree_map(lambda x: x.reshape(self.num_envs, self.size, *x.shape[1:]), tree)
