"""Networks of IQL: policy, twin critics and state value, for discrete or continuous actions."""

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlrun.functional.masks import unmasked
from rlrun.functional.value import take_action
from rlrun.nets.policy_net import PolicyNet, make_policy_net, output_size
from rlrun.nets.torso import make_torso, mlp
from rlrun.schema import MemoryConfig, TorsoConfig
from rlrun.types import Spec, Tree, torch_seed


class Critic(nn.Module):
    """Q(s, a): one output per action of a Discrete space; one output of (s, a) for a Box."""

    def __init__(self, torso: TorsoConfig, head: tuple[int, ...], spec: Spec) -> None:
        super().__init__()
        self.torso = make_torso(torso, unmasked(spec.obs))
        size, self.discrete = output_size(spec.action), isinstance(spec.action, gym.spaces.Discrete)
        sizes = [self.torso.size + (0 if self.discrete else size), *head]
        self.head = mlp([*sizes, size if self.discrete else 1], torso.activation, last=False)

    def forward(self, obs: Tree, action: Tensor) -> Tensor:
        """Return Q [B]; actions are int64 [B], or [B, N] in [-1, 1]."""
        x: Tensor = self.torso(obs)
        if self.discrete:
            return take_action(self.head(x), action)
        value: Tensor = self.head(torch.cat([x, action], -1))
        return value.squeeze(-1)


class StateValue(nn.Module):
    """V(s)."""

    def __init__(self, torso: TorsoConfig, head: tuple[int, ...], spec: Spec) -> None:
        super().__init__()
        self.torso = make_torso(torso, unmasked(spec.obs))
        self.head = mlp([self.torso.size, *head, 1], torso.activation, last=False)

    def forward(self, obs: Tree) -> Tensor:
        """Return V [B]."""
        value: Tensor = self.head(self.torso(obs))
        return value.squeeze(-1)


class IQLNets(nn.Module):
    """Policy, two critics and a state value."""

    def __init__(self, policy: PolicyNet, torso: TorsoConfig, head: tuple[int, ...], spec: Spec):
        super().__init__()
        self.policy = policy
        self.critics = nn.ModuleList([Critic(torso, head, spec) for _ in range(2)])
        self.value = StateValue(torso, head, spec)


def twin_q(critics: nn.ModuleList, obs: Tree, action: Tensor) -> Tensor:
    """Return Q [2, B] of both critics."""
    return torch.stack([critic(obs, action) for critic in critics])


def make_iql_nets(
    torso: TorsoConfig, memory: MemoryConfig, head: tuple[int, ...], spec: Spec, *, seed: int
) -> IQLNets:
    """Return IQLNets initialised from ``seed``; torch's global generator does not change."""
    policy = make_policy_net(torso, memory, head, spec, seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "values"))
        return IQLNets(policy, torso, head, spec)
