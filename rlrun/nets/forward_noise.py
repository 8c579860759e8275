"""Random numbers of a network's forward pass: weight noise and quantile levels."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.nets.noisy import LayerNoise, noise_size, noisy_layers, split_noise
from rlrun.schema import SwitchedConfig
from rlrun.types import moved, torch_seed


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
        self.taus = (config.taus, config.taus_target) if implicit else None
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


def make_noise_generator(
    net: nn.Module, config: SwitchedConfig, *, seed: int
) -> NoiseGenerator | None:
    """Return the generator of the network's noise; None: it needs none."""
    needed = config.noisy is not None or config.distribution == "implicit"
    return NoiseGenerator(net, config, seed=seed) if needed else None
