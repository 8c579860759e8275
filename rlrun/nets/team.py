"""The networks of a team: one Q-network for all agents, and a mixer."""

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlrun.functional.masks import MASK, has_mask, unmasked
from rlrun.functional.mixing import mask_left_agents
from rlrun.nets.mixer import make_mixer
from rlrun.nets.qnet import QNet
from rlrun.schema import MemoryConfig, QMIXConfig, TorsoConfig
from rlrun.spaces import JointSpace
from rlrun.types import Spec, Tree, torch_seed


class TeamNet(nn.Module):
    """Q_i of N agents with shared parameters, and the team's Q_tot.

    ``agents`` sees the agents as a batch: [T, B, N, ...] as [T, B N, ...].
    """

    available: Tensor

    def __init__(
        self, policy: QMIXConfig, torso: TorsoConfig, memory: MemoryConfig, spec: Spec
    ) -> None:
        super().__init__()
        space, action = spec.obs, spec.action
        assert isinstance(space, JointSpace), "checked in rlrun.config"
        assert isinstance(action, gym.spaces.MultiDiscrete), "checked in rlrun.config"
        self.num_agents, self.agent_id = space.num_agents, policy.agent_id
        self.masked = has_mask(space.agent)
        agent_space = unmasked(space.agent)  # read by choices of actions, never by a network
        agent_id = gym.spaces.Box(0, 1, (self.num_agents,), np.float32)
        if self.agent_id:
            agent_space = gym.spaces.Dict({"agent": agent_id, "observation": agent_space})
        actions = gym.spaces.Discrete(int(action.nvec.max()))
        self.agents = QNet(policy, torso, memory, Spec(agent_space, actions))
        self.mixer = make_mixer(policy, space["state"], self.num_agents)
        available = np.arange(actions.n) < action.nvec[:, None]  # agents may have fewer actions
        self.register_buffer("available", torch.from_numpy(available), persistent=False)

    def agent_inputs(self, obs: Tree) -> Tree:
        """Return observations of ``agents`` [*, N, ...] of joint observations [*, N, *O]."""
        agent_obs = obs["agents"]
        if not self.agent_id:
            return agent_obs
        lead = obs["alive"].shape
        one_hot = torch.eye(self.num_agents, device=obs["alive"].device)
        return {"agent": one_hot.expand(*lead, self.num_agents), "observation": agent_obs}

    def allowed_actions(self, obs: Tree) -> Tensor:
        """Return bool [*, N, A]: the actions that an agent's mask allows; all if it allows none."""
        available = self.available.expand(*obs["alive"].shape, -1)
        if not self.masked:
            return available
        allowed = available & (obs["agents"][MASK] > 0)
        return torch.where(allowed.any(-1, keepdim=True), allowed, available)

    def q_total(self, q: Tensor, obs: Tree) -> Tensor:
        """Return Q_tot [*] of the agents' values [*, N] in joint observations."""
        value: Tensor = self.mixer(mask_left_agents(q, obs["alive"] > 0), obs["state"])
        return value


def make_team_net(
    policy: QMIXConfig, torso: TorsoConfig, memory: MemoryConfig, spec: Spec, *, seed: int
) -> TeamNet:
    """Return a TeamNet initialised from ``seed``; torch's global generator does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "network"))
        return TeamNet(policy, torso, memory, spec)
