"""A nonlinear layer behind a linear memory."""

from torch import Tensor, nn


class Readout(nn.Sequential):
    """relu(LayerNorm(W y + b)): outputs [*, H] of the same width.

    The gates and decays of a linear memory do not depend on its state: without a layer behind it a
    linear head reads sums of inputs. Source: the blocks of Orvieto et al. 2023, figure 1, and of
    Feng et al. 2024, section 4, which have a gated linear unit or an MLP there.
    """

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x


def make_readout(size: int) -> Readout:
    """Return a readout of outputs of width ``size``."""
    return Readout(nn.Linear(size, size), nn.LayerNorm(size), nn.ReLU())
