"""The heads of ``DistNet`` in numpy, with weight noise per environment; forward only."""

import numpy as np
from torch import nn

from rlrun.acting.mlp import FORWARD, copy_parameter
from rlrun.nets.noisy import NoisyLinear, NoisyMLP
from rlrun.nets.qnet import DistNet


class NumpyQHead:
    """Action values of E environments; ``refresh`` copies the network's current weights."""

    def __init__(self, net: DistNet, num_envs: int) -> None:
        self.kind, self.actions, self.num_envs = net.kind, net.actions, num_envs
        self.advantage = NumpyStream(net.advantage)
        self.value = NumpyStream(net.value) if net.value is not None else None
        self.streams = [s for s in (self.advantage, self.value) if s is not None]
        self.net, self.grid = net, np.zeros(0, np.float32)
        if self.kind in ("categorical", "implicit"):
            self.grid = net.get_buffer("grid").numpy()
        self.refresh()

    def refresh(self) -> None:
        for stream in self.streams:
            stream.refresh()
        if self.kind == "implicit":  # the levels are fixed: [K, H] factors of the features
            self.phi = self.net.embedding().detach().numpy()

    def perturb(self, generator: np.random.Generator | None) -> None:
        """Draw noise for every environment, in the order of the layers; None: mean weights."""
        for stream in self.streams:
            stream.noise = None
        if generator is None:
            return
        sizes = [size for stream in self.streams for size in stream.sizes]
        eps = generator.standard_normal((self.num_envs, sum(sizes)), np.float32)
        eps = np.sign(eps) * np.sqrt(np.abs(eps))
        parts = np.split(eps, np.cumsum(sizes)[:-1], axis=1)
        for stream in self.streams:
            stream.noise, parts = parts[: len(stream.sizes)], parts[len(stream.sizes) :]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return action values [E, A] of memory outputs [E, H]."""
        if self.kind == "implicit":
            x = x[:, None] * self.phi  # [E, K, H]; dueling commutes with the mean over levels
            advantage = self.advantage(x).mean(1)
            return self._dueling(advantage, self.value(x).mean(1) if self.value else None)
        advantage, value = self.advantage(x), self.value(x) if self.value else None
        if self.kind == "none":
            return self._dueling(advantage, value)
        atoms = advantage.reshape(len(x), self.actions, -1)
        if self.kind == "quantile":
            mean = None if value is None else value.mean(-1, keepdims=True)
            return self._dueling(atoms.mean(-1), mean)
        if value is not None:
            atoms = value[:, None] + atoms - atoms.mean(1, keepdims=True)
        p = np.exp(atoms - atoms.max(-1, keepdims=True))
        q: np.ndarray = (p @ self.grid) / p.sum(-1)
        return q

    def _dueling(self, advantage: np.ndarray, value: np.ndarray | None) -> np.ndarray:
        if value is None:
            return advantage
        advantage -= advantage.mean(-1, keepdims=True)
        advantage += value
        return advantage


class NumpyStream:
    """Copies of the layers of one stream (advantage or value), noisy or not."""

    def __init__(self, layers: nn.Module) -> None:
        modules = list(layers.modules())
        self.sources = [m for m in modules if isinstance(m, (nn.Linear, NoisyLinear))]
        activations = [type(m) for m in modules if type(m) in FORWARD]
        self.activation = FORWARD[activations[0]] if activations else None
        noisy = isinstance(layers, NoisyMLP)
        noisy_layers = [m for m in self.sources if isinstance(m, NoisyLinear)]
        self.sizes = [n for m in noisy_layers for n in (m.n_in, m.n_out)]
        self.noise: list[np.ndarray] | None = None
        names = ["weight", "bias"] + (["weight_sigma", "bias_sigma"] if noisy else [])
        self.weights = [
            [copy_parameter(m.get_parameter(name)) for name in names] for m in self.sources
        ]
        self.names = names

    def refresh(self) -> None:
        for source, own in zip(self.sources, self.weights, strict=True):
            for name, array in zip(self.names, own, strict=True):
                np.copyto(array, source.get_parameter(name).detach().numpy())

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """[E, *, in] -> [E, *, out], a new array."""
        for i, (weight, bias, *sigma) in enumerate(self.weights):
            y = x @ weight.T
            y += bias
            if self.noise is not None and sigma:
                lead = (len(x), *[1] * (x.ndim - 2), -1)
                eps_in, eps_out = (e.reshape(lead) for e in self.noise[2 * i : 2 * i + 2])
                y += eps_out * ((x * eps_in) @ sigma[0].T + sigma[1])
            x = y
            if i < len(self.weights) - 1 and self.activation is not None:
                self.activation(x)
        return x
