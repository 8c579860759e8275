"""Noisy linear layers with factorised Gaussian noise (Fortunato et al. 2018).

Noise is an argument of the forward pass, not state of a layer: the online network, the target
network and every environment have their own noise at the same time.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.nets.torso import ACTIVATIONS
from rlrun.schema import SwitchedConfig
from rlrun.types import moved, torch_seed

# f(eps) of a layer's inputs [in] and outputs [out], or [B, ...] each
LayerNoise = tuple[Tensor, Tensor]


class NoisyLinear(nn.Module):
    """y = (mu_w + sigma_w * f(eps_out) f(eps_in)^T) x + mu_b + sigma_b * f(eps_out).

    mu starts uniform in +-1 / sqrt(in), sigma at ``sigma`` / sqrt(in).
    Source: Fortunato et al. 2018, eq. 9 to 11 and section 3.2.
    """

    def __init__(self, n_in: int, n_out: int, *, sigma: float) -> None:
        super().__init__()
        self.n_in, self.n_out = n_in, n_out
        bound, spread = 1 / math.sqrt(n_in), sigma / math.sqrt(n_in)
        self.weight = nn.Parameter(torch.empty(n_out, n_in).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(n_out).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((n_out, n_in), spread))
        self.bias_sigma = nn.Parameter(torch.full((n_out,), spread))

    def forward(self, x: Tensor, noise: LayerNoise | None) -> Tensor:
        """Map [*, in] to [*, out]. ``noise``: [in] and [out], or [B, ...]; None: mean weights."""
        if noise is None:
            return nn.functional.linear(x, self.weight, self.bias)
        eps_in, eps_out = noise
        if eps_in.ndim == 1:
            outer = eps_out.unsqueeze(-1) * eps_in
            weight = torch.addcmul(self.weight, self.weight_sigma, outer)
            return nn.functional.linear(
                x, weight, torch.addcmul(self.bias, self.bias_sigma, eps_out)
            )
        lead = [len(eps_in), *[1] * (x.ndim - 2)]  # noise per row: applied to x and y
        eps_in, eps_out = eps_in.reshape(*lead, -1), eps_out.reshape(*lead, -1)
        mean = nn.functional.linear(x, self.weight, self.bias)
        return mean + eps_out * nn.functional.linear(x * eps_in, self.weight_sigma, self.bias_sigma)


class NoisyMLP(nn.Module):
    """Noisy layers sizes[0] -> ... -> sizes[-1] with activations between them."""

    def __init__(self, sizes: list[int], activation: str, *, sigma: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(NoisyLinear(a, b, sigma=sigma) for a, b in pairwise(sizes))
        hidden = [ACTIVATIONS[activation]() for _ in sizes[1:-1]]
        self.activations = nn.ModuleList(hidden)  # one a layer: measured apart

    def forward(self, x: Tensor, noise: Iterator[LayerNoise] | None) -> Tensor:
        """Map [*, in] to [*, out]. Consumes one item of ``noise`` per layer."""
        for i, layer in enumerate(self.layers):
            x = layer(x, None if noise is None else next(noise))
            if i < len(self.activations):
                x = self.activations[i](x)
        return x


def noisy_layers(net: nn.Module) -> list[NoisyLinear]:
    """Return the noisy layers in the order of ``split_noise``."""
    return [m for m in net.modules() if isinstance(m, NoisyLinear)]


def split_noise(eps: Tensor, layers: Sequence[NoisyLinear]) -> list[LayerNoise]:
    """Return the noise of every layer of standard normal numbers [..., sum of in + out].

    f(eps) = sign(eps) sqrt(|eps|). Source: Fortunato et al. 2018, section 3.1 (b).
    """
    sizes = [size for layer in layers for size in (layer.n_in, layer.n_out)]
    parts = torch.split(eps.sign() * eps.abs().sqrt(), sizes, -1)
    return list(zip(parts[::2], parts[1::2], strict=True))


def noise_size(layers: Sequence[NoisyLinear]) -> int:
    """Return the number of normal numbers that the layers' noise takes."""
    return sum(layer.n_in + layer.n_out for layer in layers)


@dataclass(frozen=True, slots=True)
class ForwardNoise:
    """Random numbers of one forward pass."""

    layers: tuple[LayerNoise, ...] = ()  # of every noisy layer; empty: mean weights
    taus: Tensor | None = None  # quantile levels [*, N]; None: the midpoints of N equal intervals


MEAN_WEIGHTS = ForwardNoise()


@dataclass(frozen=True, slots=True)
class UpdateForwardNoise:
    """Noise of the passes of one update, drawn independently (Fortunato et al. 2018, eq. 16)."""

    online: ForwardNoise = MEAN_WEIGHTS  # values of the actions taken
    choice: ForwardNoise = MEAN_WEIGHTS  # the online network's choice of the bootstrap action
    target: ForwardNoise = MEAN_WEIGHTS


NO_NOISE = UpdateForwardNoise()


class NoiseGenerator:
    """Noise of updates; that of update u is a function of (key, u) alone.

    A counter-based generator has no state: equal arguments give equal noise, a checkpoint holds the
    key, and acting uses another stream.
    """

    def __init__(self, net: nn.Module, config: SwitchedConfig, *, seed: int) -> None:
        self.key = torch_seed(seed, "draws")
        self.layers = noisy_layers(net)
        self.size = noise_size(self.layers)
        implicit = config.distribution == "implicit"
        self.taus = (config.num_quantiles, config.num_quantiles_target) if implicit else None
        self.device = next(net.parameters()).device

    def __call__(self, update: int, *lead: int) -> UpdateForwardNoise:
        """Return the noise of update number ``update``; quantile levels are [*lead, N]."""
        bits = np.random.Philox(key=self.key, counter=[0, 0, 0, update])
        random = np.random.Generator(bits)
        layers: list[tuple[LayerNoise, ...]] = [(), (), ()]
        if self.size:
            eps = self._tensor(random.standard_normal((3, self.size), np.float32))
            layers = [tuple(split_noise(row, self.layers)) for row in eps]
        online = target = None
        if self.taus is not None:
            online, target = (
                self._tensor(random.random((*lead, count), np.float32)) for count in self.taus
            )
        return UpdateForwardNoise(
            ForwardNoise(layers[0], online),
            ForwardNoise(layers[1]),
            ForwardNoise(layers[2], target),
        )

    def metrics(self) -> dict[str, Tensor]:
        """Return the mean |sigma| of the noisy layers, if there are any."""
        if not self.layers:
            return {}
        with torch.no_grad():
            sizes = [layer.weight_sigma.abs().mean() for layer in self.layers]
            return {"train/sigma_abs": torch.stack(sizes).mean()}

    def _tensor(self, x: np.ndarray) -> Tensor:
        return moved(torch.from_numpy(x), self.device)
