"""Policies that are a network: logits of actions, or a Gaussian in a box; and who acts by them."""

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlrun.functional.masks import has_mask, unmasked
from rlrun.functional.offline import categorical_log_prob, normal_log_prob, to_unit
from rlrun.functional.policy import mask_logits
from rlrun.nets.memory import make_memory
from rlrun.nets.torso import make_torso, mlp
from rlrun.schema import MemoryConfig, TorsoConfig
from rlrun.types import Spec, Tree, torch_seed, tree_map

LOG_STD_BOUNDS = (
    -5.0,
    2.0,
)  # bounds of a Gaussian's spread; Kostrikov et al. 2022 (IQL), their code


class PolicyNet(nn.Module):
    """pi(action | observations): torso, memory, head.

    Discrete: logits. Box: a normal in the box scaled to [-1, 1], its mean a tanh, its spread one
    learned number per dimension.
    """

    def __init__(
        self, torso: TorsoConfig, memory: MemoryConfig, head: tuple[int, ...], spec: Spec
    ) -> None:
        super().__init__()
        self.space, self.masked = spec.action, has_mask(spec.obs)
        self.torso = make_torso(torso, unmasked(spec.obs))
        self.memory = make_memory(memory, self.torso.size)
        size = output_size(spec.action)
        self.head = mlp([self.memory.size, *head, size], torso.activation, last=False)
        self.log_std: nn.Parameter | None = None
        if isinstance(spec.action, gym.spaces.Box):
            self.log_std = nn.Parameter(torch.zeros(size))
            low, high = (torch.as_tensor(x).float().flatten() for x in bounds(spec.action))
            self.register_buffer("low", low, persistent=False)
            self.register_buffer("high", high, persistent=False)

    def inputs(self, obs: Tree) -> Tensor:
        """[*, F] what the memory sees."""
        features: Tensor = self.torso(obs)
        return features

    def unroll(self, inputs: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Logits or means [T, B, N] of ``inputs`` [T, B, F], and the state behind them."""
        h, state = self.memory.unroll(inputs, state)
        return self.out(h), state

    def out(self, h: Tensor) -> Tensor:
        """Memory outputs [*, H] -> logits, or means in [-1, 1]."""
        out: Tensor = self.head(h)
        return out if self.log_std is None else out.tanh()

    def within(self, out: Tensor, obs: Tree) -> Tensor:
        """``out`` [*, N], without the actions that observations ``obs`` forbid."""
        return mask_logits(out, obs) if self.masked else out

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        """log pi(action) [*] under ``out`` [*, N]; ``action`` [*, *A] as stored.

        In a box: the density over the box scaled to [-1, 1].
        """
        if self.log_std is None:
            return categorical_log_prob(out, action)
        return normal_log_prob(out, self.log_std.clamp(*LOG_STD_BOUNDS), self.unit(action))

    def miss(self, out: Tensor, action: Tensor) -> Tensor:
        """How far [*] the mode is from ``action``: 1 - its probability, or the mean distance."""
        if self.log_std is None:
            return 1 - categorical_log_prob(out, action).exp()
        return (out - self.unit(action)).abs().mean(-1)

    def unit(self, action: Tensor) -> Tensor:
        """Stored actions [*, *A] of a box as [*, N] in [-1, 1]."""
        lead = action.shape[: action.ndim - len(self.space.shape or ())]
        low, high = self.get_buffer("low"), self.get_buffer("high")
        return to_unit(action.reshape(*lead, -1).float(), low, high)

    def step(self, obs: Tree, first: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Logits or means [B, N] of one row; where ``first`` the state starts afresh."""
        if first.any():
            opens = first.unsqueeze(-1)
            state = tree_map(lambda x: torch.where(opens, torch.zeros_like(x), x), state)
        h, state = self.memory.step(self.inputs(obs), state)
        return self.out(h), state


def output_size(space: gym.Space[object]) -> int:
    """Logits of a Discrete space, numbers of a Box."""
    if isinstance(space, gym.spaces.Discrete):
        return int(space.n)
    assert isinstance(space, gym.spaces.Box), "checked in rlrun.config"
    return int(np.prod(space.shape))


def bounds(space: gym.spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) of a box."""
    return space.low, space.high


def make_policy_net(
    torso: TorsoConfig, memory: MemoryConfig, head: tuple[int, ...], spec: Spec, *, seed: int
) -> PolicyNet:
    """A PolicyNet whose parameters depend on ``seed`` only; torch's generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "network"))
        return PolicyNet(torso, memory, head, spec)
