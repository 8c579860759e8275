"""Q-networks that say a distribution of returns, or whose heads are noisy, or both."""

from collections.abc import Iterator

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlrun.functional.distributional import cosines, midpoints, support
from rlrun.functional.masks import unmasked
from rlrun.functional.value import dueling
from rlrun.nets.forward_noise import MEAN_WEIGHTS, ForwardNoise
from rlrun.nets.memory import make_memory
from rlrun.nets.noisy import LayerNoise, NoisyMLP
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

    def q(self, h: Tensor, draw: ForwardNoise = MEAN_WEIGHTS) -> Tensor:
        """Memory outputs [*, H] -> action values [*, A]."""
        advantage: Tensor = self.advantage(h)
        return advantage if self.value is None else dueling(self.value(h), advantage)

    def say(self, h: Tensor, draw: ForwardNoise) -> Tensor:
        """What a loss is about: action values [*, A], or [*, A, N] of a distribution."""
        return self.q(h, draw)

    def mean(self, said: Tensor) -> Tensor:
        """Action values [*, A] of what ``say`` said."""
        return said

    def unroll(
        self, inputs: Tensor, state: Tree, draw: ForwardNoise = MEAN_WEIGHTS
    ) -> tuple[Tensor, Tree]:
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
        draw: ForwardNoise = MEAN_WEIGHTS,
    ) -> tuple[Tensor, Tree]:
        """Action values [B, A] of one row; where ``first`` the state starts afresh."""
        if first.any():
            opens = first.unsqueeze(-1)
            state = tree_map(lambda x: torch.where(opens, torch.zeros_like(x), x), state)
            prev_action = torch.where(first, -1, prev_action)
            prev_reward = torch.where(first, 0.0, prev_reward)
        h, state = self.memory.step(self.inputs(obs, self.side(prev_action, prev_reward)), state)
        return self.q(h, draw), state


class DistNet(QNet):
    """Torso and memory of ``QNet`` under heads with N numbers per action.

    none         Q itself (noisy heads)
    categorical  logits of N atoms; Bellemare et al. 2017
    quantile     quantiles at the N midpoints; Dabney et al. 2018a
    implicit     quantiles at any levels tau: the heads see features * phi(tau),
                 phi(tau) = relu(W cos(pi i tau) + b); Dabney et al. 2018b, eq. 4
    Dueling streams are joined per atom or quantile (Hessel et al. 2018).
    """

    def __init__(
        self, policy: SwitchedConfig, torso: TorsoConfig, memory: MemoryConfig, spec: Spec
    ) -> None:
        super().__init__(policy, torso, memory, spec)
        self.kind, self.cosines = policy.distribution, policy.cosines
        self.embed = None
        grid: Tensor | None = None
        if self.kind == "categorical":
            grid = support(policy.v_min, policy.v_max, policy.atoms)
        elif self.kind == "implicit":
            grid = midpoints(policy.taus_act)
            self.embed = mlp([self.cosines, self.memory.size], "relu", last=True)
        self.register_buffer("grid", grid, persistent=False)  # atoms z, or levels for acting

    def stream(self, sizes: list[int], activation: str, policy: ValueConfig) -> nn.Module:
        """The layers of one head, its last one as wide as the distribution needs."""
        assert isinstance(policy, SwitchedConfig)
        each = policy.atoms if policy.distribution in ("categorical", "quantile") else 1
        sizes = [*sizes[:-1], sizes[-1] * each]
        if policy.noisy is None:
            return mlp(sizes, activation, last=False)
        return NoisyMLP(sizes, activation, sigma=policy.noisy)

    def say(self, h: Tensor, draw: ForwardNoise) -> Tensor:
        """Memory outputs [*, H] -> [*, A, N] (none: [*, A])."""
        if self.kind == "implicit":
            h = h.unsqueeze(-2) * self.embedding(draw.taus)  # [*, N, H]
        noise = iter(draw.noise) if draw.noise else None
        advantage = _through(self.advantage, h, noise)
        value = None if self.value is None else _through(self.value, h, noise)
        if self.kind in ("none", "implicit"):
            q = advantage if value is None else dueling(value, advantage)
            return q if self.kind == "none" else q.movedim(-1, -2)
        advantage = advantage.reshape(*h.shape[:-1], self.actions, -1)
        if value is None:
            return advantage
        return value.unsqueeze(-2) + advantage - advantage.mean(-2, keepdim=True)

    def embedding(self, taus: Tensor | None = None) -> Tensor:
        """phi [*, N, H] of the levels ``taus`` [*, N]; None: those for acting, the midpoints."""
        assert self.embed is not None, "distribution = implicit"
        levels = self.get_buffer("grid") if taus is None else taus
        phi: Tensor = self.embed(cosines(levels, self.cosines))
        return phi

    def mean(self, said: Tensor) -> Tensor:
        """Action values [*, A] of what ``say`` said."""
        if self.kind == "none":
            return said
        if self.kind == "categorical":
            return said.softmax(-1) @ self.get_buffer("grid")
        return said.mean(-1)

    def q(self, h: Tensor, draw: ForwardNoise = MEAN_WEIGHTS) -> Tensor:
        """Memory outputs [*, H] -> action values [*, A]."""
        return self.mean(self.say(h, draw))


def _through(stream: nn.Module, x: Tensor, noise: Iterator[LayerNoise] | None) -> Tensor:
    out: Tensor = stream(x, noise) if isinstance(stream, NoisyMLP) else stream(x)
    return out


def make_qnet(
    policy: ValueConfig, torso: TorsoConfig, memory: MemoryConfig, spec: Spec, *, seed: int
) -> QNet:
    """A QNet whose parameters depend on ``seed`` only; torch's global generator stays as it was."""
    from rlrun.nets.qnet import DistNet  # which builds on this module

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "network"))
        if not isinstance(policy, SwitchedConfig) or (
            policy.distribution == "none" and policy.noisy is None
        ):
            return QNet(policy, torso, memory, spec)
        return DistNet(policy, torso, memory, spec)
