"""The action-value network: torso, memory, (dueling) head."""

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlrun.functional.masks import unmasked
from rlrun.functional.value import dueling
from rlrun.nets.draw import MEAN, Draw
from rlrun.nets.memory import make_memory
from rlrun.nets.torso import make_torso, mlp, one_hot
from rlrun.schema import MemoryConfig, SwitchedConfig, TorsoConfig, ValueConfig
from rlrun.types import Spec, Tree, torch_seed, tree_map


class QNet(nn.Module):
    """Q(obs, previous action, previous reward, state) for every action.

    The memory's input is the torso's features and, with ``prev_inputs``, the previous action
    (one-hot, zeros before an episode's first row) and the previous reward.
    Source: R2D2 section 2.3.
    """

    def __init__(
        self, policy: ValueConfig, torso: TorsoConfig, memory: MemoryConfig, spec: Spec
    ) -> None:
        super().__init__()
        assert isinstance(spec.action, gym.spaces.Discrete), "checked in rlrun.config"
        self.actions, self.prev_inputs = int(spec.action.n), policy.prev_inputs
        self.torso = make_torso(torso, unmasked(spec.obs))
        extra = self.actions + 1 if policy.prev_inputs else 0
        self.memory = make_memory(memory, self.torso.size + extra)
        sizes = [self.memory.size, *policy.head_hidden]
        self.advantage = self.stream([*sizes, self.actions], torso.activation, policy)
        self.value = self.stream([*sizes, 1], torso.activation, policy) if policy.dueling else None

    def stream(self, sizes: list[int], activation: str, policy: ValueConfig) -> nn.Module:
        """The layers of one head."""
        return mlp(sizes, activation, last=False)

    def side(self, prev_action: Tensor, prev_reward: Tensor) -> Tensor:
        """[*, A + 1] what the memory sees beside the torso; ``prev_action`` int64, -1: none."""
        if not self.prev_inputs:
            return prev_reward.new_empty(*prev_reward.shape, 0)
        previous = one_hot(prev_action, self.actions)
        return torch.cat([previous, prev_reward.unsqueeze(-1)], -1)

    def inputs(self, obs: Tree, side: Tensor) -> Tensor:
        """[*, F] what the memory sees."""
        features: Tensor = self.torso(obs)
        return torch.cat([features, side], -1) if self.prev_inputs else features

    def q(self, h: Tensor, draw: Draw = MEAN) -> Tensor:
        """Memory outputs [*, H] -> action values [*, A]."""
        advantage: Tensor = self.advantage(h)
        return advantage if self.value is None else dueling(self.value(h), advantage)

    def say(self, h: Tensor, draw: Draw) -> Tensor:
        """What a loss is about: action values [*, A], or [*, A, N] of a distribution."""
        return self.q(h, draw)

    def mean(self, said: Tensor) -> Tensor:
        """Action values [*, A] of what ``say`` said."""
        return said

    def unroll(self, inputs: Tensor, state: Tree, draw: Draw = MEAN) -> tuple[Tensor, Tree]:
        """What ``say`` says of ``inputs`` [T, B, F], and the state behind them."""
        h, state = self.memory.unroll(inputs, state)
        return self.say(h, draw), state

    def step(
        self,
        obs: Tree,
        first: Tensor,
        prev_action: Tensor,
        prev_reward: Tensor,
        state: Tree,
        draw: Draw = MEAN,
    ) -> tuple[Tensor, Tree]:
        """Action values [B, A] of one row; where ``first`` the state starts afresh."""
        if first.any():
            opens = first.unsqueeze(-1)
            state = tree_map(lambda x: torch.where(opens, torch.zeros_like(x), x), state)
            prev_action = torch.where(first, -1, prev_action)
            prev_reward = torch.where(first, 0.0, prev_reward)
        h, state = self.memory.step(self.inputs(obs, self.side(prev_action, prev_reward)), state)
        return self.q(h, draw), state


def make_qnet(
    policy: ValueConfig, torso: TorsoConfig, memory: MemoryConfig, spec: Spec, *, seed: int
) -> QNet:
    """A QNet whose parameters depend on ``seed`` only; torch's global generator stays as it was."""
    from rlrun.nets.distnet import DistNet  # which builds on this module

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "network"))
        if not isinstance(policy, SwitchedConfig) or (
            policy.distribution == "none" and policy.noisy is None
        ):
            return QNet(policy, torso, memory, spec)
        return DistNet(policy, torso, memory, spec)
