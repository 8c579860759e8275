"""The networks of a team: one Q-network for all agents and a mixer; and who acts with them."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlrun.functional.explore import team_epsilon_greedy
from rlrun.functional.mixing import living_values
from rlrun.joint import JointSpace
from rlrun.nets.acting import Step, make_step
from rlrun.nets.mixer import make_mixer
from rlrun.nets.qnet import QNet
from rlrun.schema import MemoryConfig, QMIXConfig, TorsoConfig
from rlrun.types import Act, Spec, Tree, torch_seed, tree_map

MASK = "action_mask"  # PettingZoo's key of a dict observation: 1 where an action is allowed


class TeamNet(nn.Module):
    """Q_i of N agents from shared parameters, and their team's Q_tot.

    Agents lie beside each other: [T, B, N, ...] is [T, B N, ...] to ``agents``.
    """

    counts: Tensor

    def __init__(
        self, policy: QMIXConfig, torso: TorsoConfig, memory: MemoryConfig, spec: Spec
    ) -> None:
        super().__init__()
        space, action = spec.obs, spec.action
        assert isinstance(space, JointSpace), "checked in rlrun.config"
        assert isinstance(action, gym.spaces.MultiDiscrete), "checked in rlrun.config"
        self.size, self.numbered = space.num_agents, policy.agent_id
        inner = space.agent
        self.masked = isinstance(inner, gym.spaces.Dict) and MASK in inner.spaces
        number = gym.spaces.Box(0, 1, (self.size,), np.float32)
        if self.numbered:
            inner = gym.spaces.Dict({"agent": number, "observation": inner})
        actions = gym.spaces.Discrete(int(action.nvec.max()))
        self.agents = QNet(policy, torso, memory, Spec(inner, actions))
        self.mixer = make_mixer(policy, space["state"], self.size)
        can = np.arange(actions.n) < action.nvec[:, None]
        self.register_buffer("counts", torch.from_numpy(can), persistent=False)

    def beside(self, obs: Tree) -> Tree:
        """What ``agents`` sees of joint observations [*, N, *O], still with the axis of agents."""
        seen = obs["agents"]
        if not self.numbered:
            return seen
        lead = obs["alive"].shape
        number = torch.eye(self.size, device=obs["alive"].device).expand(*lead, self.size)
        return {"agent": number, "observation": seen}

    def allowed(self, obs: Tree) -> Tensor:
        """bool [*, N, A]: the actions an agent has and its observation's mask allows (or all)."""
        can = self.counts.expand(*obs["alive"].shape, -1)
        if not self.masked:
            return can
        some = can & (obs["agents"][MASK] > 0)
        return torch.where(some.any(-1, keepdim=True), some, can)

    def total(self, q: Tensor, obs: Tree) -> Tensor:
        """Q_tot [*] of the agents' values [*, N] in joint observations."""
        value: Tensor = self.mixer(living_values(q, obs["alive"] > 0), obs["state"])
        return value


class TeamActor:
    """Greedy actions of every agent from what it sees alone, or uniform ones with a probability."""

    def __init__(
        self, net: TeamNet, config: QMIXConfig, generator: np.random.Generator, *, num_envs: int
    ) -> None:
        self.num_envs, self.size, self.generator = num_envs, net.size, generator
        self.columns: Step = make_step(net.agents, num_envs * net.size)
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
        """Action values [E, N, A] and the state behind the row; see ``rlrun.nets.acting.Step``."""
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


def make_team(
    policy: QMIXConfig, torso: TorsoConfig, memory: MemoryConfig, spec: Spec, *, seed: int
) -> TeamNet:
    """A TeamNet whose parameters depend on ``seed`` only; torch's own generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "network"))
        return TeamNet(policy, torso, memory, spec)
