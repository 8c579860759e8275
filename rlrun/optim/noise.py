"""Random numbers of updates."""

import torch
from torch import Tensor

from rlrun.types import torch_seed


class SeededNoise:
    """Random numbers that depend on the seed and the number of the update alone.

    A loss is then a function of batch and parameters, and no generator state has to be saved.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.base, self.device = torch_seed(seed, "noise"), device
        self.generator = torch.Generator(device)

    def __call__(self, update: int, *shape: int) -> Tensor:
        """Standard normal float32 [*shape] of update number ``update``."""
        self.generator.manual_seed((self.base + update) % 2**63)
        return torch.randn(shape, generator=self.generator, device=self.device)

    def uniform(self, update: int, *shape: int) -> Tensor:
        """Uniform float32 [*shape] in [-1, 1) of update number ``update``."""
        self.generator.manual_seed((self.base + update) % 2**63)
        return 2 * torch.rand(shape, generator=self.generator, device=self.device) - 1
