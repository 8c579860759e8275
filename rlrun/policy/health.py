"""Health of networks: dead units, and the distance to the target network."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rlrun.nets.actor_and_critics import Critics
from rlrun.nets.noise import NoisyMLP

DORMANT = 0.025  # tau; Sokar et al. 2023, section 3
_ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.ELU)
_MEMORIES = (nn.LSTM, nn.GRU)


class UnitActivity:
    """Measures the hidden units of networks in the forward passes of a ``with`` block.

    A ReLU unit is dead if its mean |h| is at most ``DORMANT`` times the mean of its layer
    (tau-dormant). A stuck unit of tanh, ELU, LSTM or GRU is constant, not 0, so its standard
    deviation is compared instead. A convolution's channel is one unit over all its pixels. Each of
    several critics has layers of its own.

    ``positions``: bool, the leading dimensions of the networks' inputs; outputs where it is False
    (padding) are left out. None: all count. Outputs with several entries per position (agents,
    quantile levels, pixels) count with all of them.

    Source: Sokar et al., "The Dormant Neuron Phenomenon in Deep Reinforcement Learning", ICML 2023,
    definition 3.1.
    """

    def __init__(self, *nets: nn.Module, positions: Tensor | None = None) -> None:
        self.nets, self.positions = nets, positions
        self.handles: list[RemovableHandle] = []
        self.sums: dict[nn.Module, Tensor] = {}  # of a layer, [3, units] or [3, C, units]
        self.counts: dict[nn.Module, int] = {}

    def __enter__(self) -> "UnitActivity":
        for net in self.nets:
            for module, layout in _layers(net):
                self.handles.append(module.register_forward_hook(self._hook(layout)))
        return self

    def __exit__(self, *exception: object) -> None:
        for handle in self.handles:
            handle.remove()

    def _hook(self, units: Sequence[int]) -> Any:
        """Return a forward hook. ``units``: the dimensions of an output that index its units."""

        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            x = output[0] if isinstance(output, tuple) else output
            x = x.movedim(tuple(units), tuple(range(-len(units), 0)))
            x = x.flatten(0, -len(units) - 1)  # [rows, *units]
            if self.positions is not None:
                x = x.unflatten(0, (self.positions.numel(), -1))[self.positions.flatten()]
                x = x.flatten(0, 1)
            sums = torch.stack([p.sum(0, dtype=torch.float64) for p in (x.abs(), x, x.square())])
            self.sums[module] = self.sums[module] + sums if module in self.sums else sums
            self.counts[module] = self.counts.get(module, 0) + len(x)

        return hook

    def dead(self) -> Tensor | None:
        """Return the share of dead units, 0-d; None: no known layer, or no position."""
        if not any(self.counts.values()):
            return None
        flags = []
        for module, sums in self.sums.items():
            size, mean, square = sums / self.counts[module]
            spread = (square - mean.square()).clamp(min=0).sqrt()
            activity = size if isinstance(module, nn.ReLU) else spread
            flags.append((activity <= DORMANT * activity.mean(-1, keepdim=True)).flatten())
        return torch.cat(flags).double().mean()


def _layers(net: nn.Module) -> Iterator[tuple[nn.Module, Sequence[int]]]:
    """Yield (module whose output is a hidden layer, dimensions that index its units)."""
    for module in net.modules():
        if isinstance(module, nn.Sequential):
            for layer, activation in pairwise(module):
                if isinstance(activation, _ACTIVATIONS):
                    channels = isinstance(layer, nn.Conv2d)
                    yield activation, (-3,) if channels else (-1,)
        elif isinstance(module, NoisyMLP | Critics):
            units = (0, -1) if isinstance(module, Critics) else (-1,)
            yield from ((activation, units) for activation in module.activations)
        elif isinstance(module, _MEMORIES):
            yield module, (-1,)


@torch.no_grad()
def relative_distance(target: list[Tensor], online: list[Tensor]) -> Tensor:
    """Return |theta - theta^-| / |theta| over all parameters, 0-d."""
    gap: Tensor = torch.stack(torch._foreach_norm(torch._foreach_sub(online, target))).norm()
    size: Tensor = torch.stack(torch._foreach_norm(online)).norm()
    return gap / size.clamp(min=1e-12)
