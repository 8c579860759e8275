"""The policy network of behaviour cloning and IQL."""

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlrun.functional.masks import has_mask, unmasked
from rlrun.functional.offline import categorical_log_prob, normal_log_prob
from rlrun.functional.policy import mask_logits
from rlrun.functional.value import take_action
from rlrun.nets.acting import ActingNet, ActionBounds, TorsoMemory, action_size
from rlrun.nets.memory import make_memory
from rlrun.nets.noise import MEAN_WEIGHTS, ForwardNoise
from rlrun.nets.torso import make_torso, mlp
from rlrun.schema import MemoryConfig, TorsoConfig
from rlrun.types import Spec, Tree

LOG_STD_BOUNDS = (-5.0, 2.0)  # bounds of the log std; Kostrikov et al. 2022 (IQL), their code


class PolicyNet(ActingNet):
    """pi(action | observations): torso, memory, head.

    Discrete: logits. Box: a Gaussian over the box scaled to [-1, 1] with a tanh mean and one
    learned log standard deviation per dimension.
    """

    def __init__(
        self, torso: TorsoConfig, memory: MemoryConfig, head: tuple[int, ...], spec: Spec
    ) -> None:
        super().__init__(spec.action)
        self.masked = has_mask(spec.obs)
        self.torso = make_torso(torso, unmasked(spec.obs))
        self.memory = make_memory(memory, self.torso.size)
        size = action_size(spec.action)
        self.head = mlp([self.memory.size, *head, size], torso.activation, last=False)
        self.log_std: nn.Parameter | None = None
        if isinstance(spec.action, gym.spaces.Box):
            self.log_std = nn.Parameter(torch.zeros(size))
            self.bounds = ActionBounds(spec.action)

    def inputs(self, obs: Tree) -> Tensor:
        """Return the memory's inputs [*, F]."""
        features: Tensor = self.torso(obs)
        return features

    def unroll(self, inputs: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Return logits or means [T, B, N] of ``inputs`` [T, B, F], and the state after row T-1."""
        h, state = self.memory.unroll(inputs, state)
        return self.head_outputs(h), state

    def acting_trunks(self) -> list[TorsoMemory]:
        return [(self.torso, self.memory)]

    def head_outputs(self, h: Tensor, noise: ForwardNoise = MEAN_WEIGHTS) -> Tensor:
        """Return logits, or means in [-1, 1], [*, N] of memory outputs [*, H]."""
        out: Tensor = self.head(h)
        return out if self.log_std is None else out.tanh()

    def action_log_std(self) -> Tensor:
        """Return the log standard deviations [N] of a Box, within their bounds."""
        assert self.log_std is not None, "a Box"
        return self.log_std.clamp(*LOG_STD_BOUNDS)

    def apply_mask(self, outputs: Tensor, obs: Tree) -> Tensor:
        """Return ``outputs`` [*, N] with the logits of forbidden actions masked."""
        return mask_logits(outputs, obs) if self.masked else outputs

    def log_prob(self, outputs: Tensor, action: Tensor) -> Tensor:
        """Return log pi(action) [*] for ``outputs`` [*, N]; ``action`` [*, *A] as stored.

        Box: the density over the box scaled to [-1, 1].
        """
        if self.log_std is None:
            return categorical_log_prob(outputs, action)
        return normal_log_prob(outputs, self.action_log_std(), self.to_unit(action))

    def mode_error(self, outputs: Tensor, action: Tensor) -> Tensor:
        """Return 1 - pi(action) [*]; Box: the mean distance of the mode from ``action``."""
        if self.log_std is None:
            return 1 - categorical_log_prob(outputs, action).exp()
        return (outputs - self.to_unit(action)).abs().mean(-1)

    def to_unit(self, action: Tensor) -> Tensor:
        """Return stored actions [*, *A] of a Box as [*, N] in [-1, 1]."""
        assert self.bounds is not None
        return self.bounds.to_unit(action)


class Critic(nn.Module):
    """Q(s, a): one output per action of a Discrete space; one output of (s, a) for a Box."""

    def __init__(self, torso: TorsoConfig, head: tuple[int, ...], spec: Spec) -> None:
        super().__init__()
        self.torso = make_torso(torso, unmasked(spec.obs))
        size, self.discrete = action_size(spec.action), isinstance(spec.action, gym.spaces.Discrete)
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
