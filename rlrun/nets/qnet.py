"""Q-networks: action values, distributions of returns, noisy heads."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from rlrun.functional.criterion import cosines, midpoints, support
from rlrun.functional.masks import has_mask, unmasked
from rlrun.functional.value import dueling
from rlrun.nets.acting import ActingNet, TorsoMemory
from rlrun.nets.memory import make_memory
from rlrun.nets.noise import MEAN_WEIGHTS, ForwardNoise, LayerNoise, NoisyMLP
from rlrun.nets.torso import CNN, make_torso, mlp
from rlrun.schema import ActionValueConfig, MemoryConfig, SwitchedConfig, TorsoConfig
from rlrun.types import Spec, Tree


class QNet(ActingNet):
    """Q(obs, previous action, previous reward, state) of every action.

    The memory reads the torso's features and, with ``prev_inputs``, the previous action (one-hot,
    zeros in an episode's first row) and the previous reward. Source: R2D2 section 2.3.
    """

    def __init__(
        self, policy: ActionValueConfig, torso: TorsoConfig, memory: MemoryConfig, spec: Spec
    ) -> None:
        super().__init__(spec.action)
        (self.actions,), self.prev_inputs = self.sizes, policy.prev_inputs
        self.masked = has_mask(spec.obs)
        self.torso = make_torso(torso, unmasked(spec.obs))
        self.memory = make_memory(memory, self.torso.size + self.previous_size)
        sizes = [self.memory.size, *policy.head_hidden]
        self.advantage = self.make_stream([*sizes, self.actions], torso.activation, policy)
        self.value = (
            self.make_stream([*sizes, 1], torso.activation, policy) if policy.dueling else None
        )

    def make_stream(
        self, sizes: list[int], activation: str, policy: ActionValueConfig
    ) -> nn.Module:
        """Return the layers of one dueling stream."""
        return mlp(sizes, activation, last=False)

    def acting_trunks(self) -> list[TorsoMemory]:
        return [(self.torso, self.memory)]

    def prepared(self, inputs: tuple[Tree, Tensor]) -> tuple[Tree, Tensor]:
        """Return (obs, previous) of windows so that work on images is shared with the target."""
        torso, (obs, previous) = self.torso, inputs
        if isinstance(torso, CNN) and isinstance(obs, Tensor):
            return torso.prepared(obs), previous
        return inputs

    def inputs(self, obs: Tree, previous: Tensor) -> Tensor:
        """Return the memory's inputs [*, F]; ``previous``: of ``encode_previous``."""
        features: Tensor = self.torso(obs)
        return torch.cat([features, previous], -1) if self.prev_inputs else features

    def outputs(self, h: Tensor, noise: ForwardNoise = MEAN_WEIGHTS) -> Tensor:
        """Return action values [*, A], or the distribution's parameters [*, A, N]."""
        advantage: Tensor = self.advantage(h)
        return advantage if self.value is None else dueling(self.value(h), advantage)

    def expected_q(self, outputs: Tensor) -> Tensor:
        """Return action values [*, A] of ``outputs``."""
        return outputs

    def head_outputs(self, h: Tensor, noise: ForwardNoise = MEAN_WEIGHTS) -> Tensor:
        """Return action values [*, A] of memory outputs [*, H]."""
        return self.expected_q(self.outputs(h, noise))

    def unroll(
        self, inputs: Tensor, state: Tree, noise: ForwardNoise = MEAN_WEIGHTS
    ) -> tuple[Tensor, Tree]:
        """Return ``outputs`` of ``inputs`` [T, B, F], and the state after row T-1."""
        h, state = self.memory.unroll(inputs, state)
        return self.outputs(h, noise), state


class DistNet(QNet):
    """Torso and memory of ``QNet``, heads with N outputs per action.

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
            grid = midpoints(policy.num_quantiles_act)
            self.embed = mlp([self.cosines, self.memory.size], "relu", last=True)
        self.register_buffer(
            "grid", grid, persistent=False
        )  # atoms z, or the quantile levels of acting

    def make_stream(
        self, sizes: list[int], activation: str, policy: ActionValueConfig
    ) -> nn.Module:
        assert isinstance(policy, SwitchedConfig)
        per_action = policy.atoms if policy.distribution in ("categorical", "quantile") else 1
        sizes = [*sizes[:-1], sizes[-1] * per_action]
        if policy.noisy is None:
            return mlp(sizes, activation, last=False)
        return NoisyMLP(sizes, activation, sigma=policy.noisy)

    def outputs(self, h: Tensor, noise: ForwardNoise = MEAN_WEIGHTS) -> Tensor:
        """Return [*, A, N] (none: [*, A]) of memory outputs [*, H]."""
        if self.kind == "implicit":
            h = h.unsqueeze(-2) * self.embedding(noise.taus)  # [*, N, H]
        layer_noise = iter(noise.layers) if noise.layers else None
        advantage = _apply_stream(self.advantage, h, layer_noise)
        value = None if self.value is None else _apply_stream(self.value, h, layer_noise)
        if self.kind in ("none", "implicit"):
            q = advantage if value is None else dueling(value, advantage)
            return q if self.kind == "none" else q.movedim(-1, -2)
        advantage = advantage.reshape(*h.shape[:-1], self.actions, -1)
        if value is None:
            return advantage
        return value.unsqueeze(-2) + advantage - advantage.mean(-2, keepdim=True)

    def embedding(self, taus: Tensor | None = None) -> Tensor:
        """Return phi [*, N, H] of the levels ``taus`` [*, N]; None: the midpoints, for acting."""
        assert self.embed is not None, "distribution = implicit"
        levels = self.get_buffer("grid") if taus is None else taus
        phi: Tensor = self.embed(cosines(levels, self.cosines))
        return phi

    def expected_q(self, outputs: Tensor) -> Tensor:
        if self.kind == "none":
            return outputs
        if self.kind == "categorical":
            return outputs.softmax(-1) @ self.get_buffer("grid")
        return outputs.mean(-1)


def _apply_stream(stream: nn.Module, x: Tensor, noise: Iterator[LayerNoise] | None) -> Tensor:
    out: Tensor = stream(x, noise) if isinstance(stream, NoisyMLP) else stream(x)
    return out


def make_qnet(
    policy: ActionValueConfig, torso: TorsoConfig, memory: MemoryConfig, spec: Spec
) -> QNet:
    """Return the Q-network of a config, initialised by torch's global generator."""
    if not isinstance(policy, SwitchedConfig) or (
        policy.distribution == "none" and policy.noisy is None
    ):
        return QNet(policy, torso, memory, spec)
    return DistNet(policy, torso, memory, spec)
