"""What is drawn at random in a network's forward pass: weight noise and quantile levels."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.nets.noisy import LayerNoise, noise_size, noisy_layers, split_noise
from rlrun.schema import SwitchedConfig
from rlrun.types import moved, torch_seed


@dataclass(frozen=True, slots=True)
class ForwardNoise:
    """One forward pass: noise of every noisy layer (none: mean weights), levels tau [*, N] (None:
    the midpoints of equal shares)."""

    noise: tuple[LayerNoise, ...] = ()
    taus: Tensor | None = None


MEAN_WEIGHTS = ForwardNoise()


@dataclass(frozen=True, slots=True)
class UpdateNoise:
    """The passes of one update; each draws its own (Fortunato et al. 2018, eq. 16)."""

    online: ForwardNoise = MEAN_WEIGHTS  # what learns
    select: ForwardNoise = MEAN_WEIGHTS  # the online network as it picks the bootstrap action
    target: ForwardNoise = MEAN_WEIGHTS


_PLAIN = UpdateNoise()


class NoiseGenerator:
    """The random numbers of updates: those of update u are a function of (key, u) alone.

    A counter-based generator needs no state of its own: asking twice gives the same, a checkpoint
    holds the key, and acting draws from another stream.
    """

    def __init__(self, net: nn.Module, config: SwitchedConfig, *, seed: int) -> None:
        self.key = torch_seed(seed, "draws")
        self.layers = noisy_layers(net)
        self.size = noise_size(self.layers)
        implicit = config.distribution == "implicit"
        self.taus = (config.taus, config.taus_target) if implicit else None
        self.device = next(net.parameters()).device

    def __call__(self, update: int, *lead: int) -> UpdateNoise:
        """Those of update number ``update``; levels are [*lead, N]."""
        if not self.size and self.taus is None:
            return _PLAIN
        bits = np.random.Philox(key=self.key, counter=[0, 0, 0, update])
        random = np.random.Generator(bits)
        noises: list[tuple[LayerNoise, ...]] = [(), (), ()]
        if self.size:
            eps = self._tensor(random.standard_normal((3, self.size), np.float32))
            noises = [tuple(split_noise(row, self.layers)) for row in eps]
        online = target = None
        if self.taus is not None:
            online, target = (
                self._tensor(random.random((*lead, count), np.float32)) for count in self.taus
            )
        return UpdateNoise(
            ForwardNoise(noises[0], online),
            ForwardNoise(noises[1]),
            ForwardNoise(noises[2], target),
        )

    def metrics(self) -> dict[str, Tensor]:
        """How much noise the weights have learned to carry."""
        if not self.layers:
            return {}
        with torch.no_grad():
            sizes = [layer.weight_sigma.abs().mean() for layer in self.layers]
            return {"train/sigma_abs": torch.stack(sizes).mean()}

    def _tensor(self, x: np.ndarray) -> Tensor:
        return moved(torch.from_numpy(x), self.device)
