"""The heads of Q-networks in numpy, with weight noise per environment; forward only."""

import numpy as np
from torch import nn

from rlrun.acting.mlp import ForwardMLP, copy_parameter
from rlrun.nets.noisy import NoisyMLP, noisy_layers
from rlrun.nets.qnet import DistNet, QNet


class NoisyForwardMLP(ForwardMLP):
    """The layers of a ``NoisyMLP``, with the mean weights or with noise."""

    def __init__(self, stream: NoisyMLP) -> None:
        layers = noisy_layers(stream)
        hidden = [m for pair in zip(layers, stream.activations, strict=False) for m in pair]
        super().__init__([*hidden, layers[-1]])
        self.sizes = [n for m in layers for n in (m.n_in, m.n_out)]
        self.sigmas = [
            [copy_parameter(m.weight_sigma), copy_parameter(m.bias_sigma)] for m in layers
        ]
        self.noise: list[np.ndarray] | None = None  # f(eps) of inputs and outputs of every layer

    def refresh(self) -> None:
        super().refresh()
        for source, (weight, bias) in zip(self.sources, self.sigmas, strict=True):
            np.copyto(weight, source.get_parameter("weight_sigma").detach().numpy())
            np.copyto(bias, source.get_parameter("bias_sigma").detach().numpy())

    def __call__(self, x: np.ndarray) -> np.ndarray:
        if self.noise is None:
            return super().__call__(x)
        for i, (weight, bias, _, activation) in enumerate(self.layers):
            weight_sigma, bias_sigma = self.sigmas[i]
            lead = (len(x), *[1] * (x.ndim - 2), -1)
            eps_in, eps_out = (e.reshape(lead) for e in self.noise[2 * i : 2 * i + 2])
            y = x @ weight
            y += bias
            y += eps_out * ((x * eps_in) @ weight_sigma.T + bias_sigma)
            if activation is not None:
                activation(y)
            x = y
        return x


class NumpyQHead:
    """Action values of E environments; ``refresh`` copies the network's current weights."""

    def __init__(self, net: QNet, num_envs: int) -> None:
        self.net, self.actions, self.num_envs = net, net.actions, num_envs
        self.advantage = _forward(net.advantage)
        self.value = None if net.value is None else _forward(net.value)
        self.streams = [s for s in (self.advantage, self.value) if s is not None]
        self.kind = net.kind if isinstance(net, DistNet) else "none"
        if self.kind in ("categorical", "implicit"):
            self.grid = net.get_buffer("grid").numpy()
        self.refresh()

    def refresh(self) -> None:
        for stream in self.streams:
            stream.refresh()
        if isinstance(self.net, DistNet) and self.kind == "implicit":
            self.phi = self.net.embedding().detach().numpy()  # [K, H]: the levels are fixed

    def perturb(self, generator: np.random.Generator | None) -> None:
        """Draw noise for every environment, in the order of the layers; None: mean weights."""
        streams = [s for s in self.streams if isinstance(s, NoisyForwardMLP)]
        if generator is None:
            for stream in streams:
                stream.noise = None
            return
        sizes = [size for stream in streams for size in stream.sizes]
        eps = generator.standard_normal((self.num_envs, sum(sizes)), np.float32)
        eps = np.sign(eps) * np.sqrt(np.abs(eps))
        parts = np.split(eps, np.cumsum(sizes)[:-1], axis=1)
        for stream in streams:
            stream.noise, parts = parts[: len(stream.sizes)], parts[len(stream.sizes) :]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return action values [E, A] of memory outputs [E, H]."""
        if self.kind == "implicit":
            x = x[:, None] * self.phi  # [E, K, H]
        advantage = self.advantage(x)
        value = None if self.value is None else self.value(x)
        if self.kind == "categorical":
            atoms = advantage.reshape(len(x), self.actions, -1)
            if value is not None:
                atoms = value[:, None] + atoms - atoms.mean(1, keepdims=True)
            p = np.exp(atoms - atoms.max(-1, keepdims=True))
            q: np.ndarray = (p @ self.grid) / p.sum(-1)
            return q
        if self.kind == "implicit":  # dueling commutes with the mean over levels
            advantage = advantage.mean(1)
            value = None if value is None else value.mean(1)
        elif self.kind == "quantile":
            advantage = advantage.reshape(len(x), self.actions, -1).mean(-1)
            value = None if value is None else value.mean(-1, keepdims=True)
        if value is not None:
            advantage -= advantage.sum(-1, keepdims=True) * np.float32(1 / self.actions)
            advantage += value
        return advantage


def _forward(stream: nn.Module) -> ForwardMLP:
    if isinstance(stream, NoisyMLP):
        return NoisyForwardMLP(stream)
    assert isinstance(stream, nn.Sequential)
    return ForwardMLP(stream)
