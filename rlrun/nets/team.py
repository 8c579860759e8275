"""The networks of a team: one Q-network for all agents, and a mixer."""

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlrun.functional.masks import MASK, has_mask, unmasked
from rlrun.functional.value import mask_left_agents, qmix_total, vdn_total
from rlrun.nets.qnet import QNet
from rlrun.nets.torso import flat_size, flatten, mlp
from rlrun.schema import MemoryConfig, QMIXConfig, TorsoConfig
from rlrun.spaces import JointSpace
from rlrun.types import Spec, Tree


class VDNMixer(nn.Module):
    """VDN: the sum of the agents' values. It has no parameters and does not use the state.

    Source: Sunehag et al. 2018.
    """

    def forward(self, q: Tensor, state: Tree) -> Tensor:
        """Mix q [*, N] to [*]."""
        return vdn_total(q)


class QMixer(nn.Module):
    """QMIX: a network with one hidden layer whose weights are functions of the state.

    Source: Rashid et al. 2018, section 4 (hypernetworks of one linear layer, two layers with a ReLU
    for the last bias); Rashid et al. 2020, appendix (``hyper_hidden`` for the weights'
    hypernetworks).
    """

    def __init__(self, config: QMIXConfig, state: gym.Space[object], num_agents: int) -> None:
        super().__init__()
        self.space, self.hidden = state, config.mixer_hidden
        size, hidden = flat_size(state), config.mixer_hidden
        hyper = [size, *config.hyper_hidden]
        self.w1 = mlp([*hyper, num_agents * hidden], "relu", last=False)
        self.b1 = mlp([size, hidden], "relu", last=False)
        self.w2 = mlp([*hyper, hidden], "relu", last=False)
        self.b2 = mlp([size, hidden, 1], "relu", last=False)

    def forward(self, q: Tensor, state: Tree) -> Tensor:
        """Mix q [*, N] to [*]."""
        s = flatten(self.space, state)
        w1 = self.w1(s).unflatten(-1, (q.shape[-1], self.hidden))
        return qmix_total(q, w1, self.b1(s), self.w2(s), self.b2(s).squeeze(-1))


class TeamNet(nn.Module):
    """Q_i of N agents with shared parameters, and the team's Q_tot.

    ``agents`` reads the agents as a batch: [T, B, N, ...] as [T, B N, ...].
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
        agent_space = unmasked(space.agent)  # action selection reads the mask, networks do not
        agent_id = gym.spaces.Box(0, 1, (self.num_agents,), np.float32)
        if self.agent_id:
            agent_space = gym.spaces.Dict({"agent": agent_id, "observation": agent_space})
        actions = gym.spaces.Discrete(int(action.nvec.max()))
        self.agents = QNet(policy, torso, memory, Spec(agent_space, actions))
        self.mixer: VDNMixer | QMixer = VDNMixer()
        if policy.mixer != "sum":
            self.mixer = QMixer(policy, space["state"], self.num_agents)
        available = np.arange(actions.n) < action.nvec[:, None]  # agents may have fewer actions
        self.register_buffer("available", torch.from_numpy(available), persistent=False)

    def agent_inputs(self, obs: Tree) -> Tree:
        """Return the inputs [*, N, ...] of ``agents`` from joint observations [*, N, *O]."""
        agent_obs = obs["agents"]
        if not self.agent_id:
            return agent_obs
        lead = obs["alive"].shape
        one_hot = torch.eye(self.num_agents, device=obs["alive"].device)
        return {"agent": one_hot.expand(*lead, self.num_agents), "observation": agent_obs}

    def allowed_actions(self, obs: Tree) -> Tensor:
        """Return bool [*, N, A]: the actions that each agent's mask allows; if none, all."""
        available = self.available.expand(*obs["alive"].shape, -1)
        if not self.masked:
            return available
        allowed = available & (obs["agents"][MASK] > 0)
        return torch.where(allowed.any(-1, keepdim=True), allowed, available)

    def q_total(self, q: Tensor, obs: Tree) -> Tensor:
        """Return Q_tot [*] of the agents' values [*, N] in joint observations."""
        value: Tensor = self.mixer(mask_left_agents(q, obs["alive"] > 0), obs["state"])
        return value
