"""The networks of a team: one Q-network for all agents and a mixer; and who acts with them."""

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlrun.functional.mixing import mask_left_agents
from rlrun.joint import JointSpace
from rlrun.nets.mixer import make_mixer
from rlrun.nets.qnet import QNet
from rlrun.schema import MemoryConfig, QMIXConfig, TorsoConfig
from rlrun.types import Spec, Tree, torch_seed

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
        value: Tensor = self.mixer(mask_left_agents(q, obs["alive"] > 0), obs["state"])
        return value


def make_team_net(
    policy: QMIXConfig, torso: TorsoConfig, memory: MemoryConfig, spec: Spec, *, seed: int
) -> TeamNet:
    """A TeamNet whose parameters depend on ``seed`` only; torch's own generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "network"))
        return TeamNet(policy, torso, memory, spec)
