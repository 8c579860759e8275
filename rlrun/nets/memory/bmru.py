"""BMRU: bits with hysteresis, a memory with several stable states."""

import math

import torch
from torch import Tensor, nn

from rlrun.nets.memory.cell import ScanCell, at_least_float32, make_readout
from rlrun.schema import BMRUConfig, MemoryConfig


class BMRU(ScanCell):
    """Bistable memory recurrent unit: an input beyond a threshold sets a bit, others keep it.

    c_t = W_c x_t + b_c                      candidate
    beta_t = |W_beta x_t + b_beta|           threshold
    z_t = 1 if |c_t| > beta_t else 0
    h_t = z_t sgn(c_t) alpha + (1 - z_t) h_{t-1}
    A decay is 1 or 0 exactly, so a bit is kept for any number of rows, unlike in memories whose
    decays are below 1. Gates do not depend on the state, so a window is a scan. State h [B, H],
    each 0 (an unset bit) or +-alpha; outputs are a ``Readout`` of h and x, because bits alone would
    hide the numbers of the present row (``memory.readout=false``: h).
    Steps have no gradient: backwards, z and sgn are those of 1/2 + atan(pi v) / pi and its double
    less 1, v their argument.
    Initialisation: b_beta evenly spread over [0, ``threshold``], alpha = 1, else that of nn.Linear.
    Source: De Geeter et al. 2026, "Parallelizable memory recurrent units": units with two stable
    states that a scan computes. The equations were not compared with the paper's text, and
    surrogate gradients, initial values and readout are ours.
    """

    def __init__(self, config: MemoryConfig, features: int) -> None:
        assert isinstance(config, BMRUConfig)
        super().__init__(config, features)
        n = config.hidden
        self.shape = (n,)
        self.core = nn.Linear(features, 2 * n)  # candidate, threshold
        self.alpha = nn.Parameter(torch.ones(n))
        with torch.no_grad():
            self.core.bias[n:] = torch.linspace(0, config.threshold, n)
        self.readout = make_readout(n, n + features) if config.readout else None

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        candidate, threshold = at_least_float32(self.core(x)).chunk(2, -1)
        z = step_function(candidate.abs() - threshold.abs())
        sign = 2 * step_function(candidate) - 1
        return 1 - z, z * sign * self.alpha

    def read(self, s: Tensor, x: Tensor, *others: Tensor) -> Tensor:
        if self.readout is None:
            return s
        y: Tensor = self.readout(torch.cat((s, at_least_float32(x)), -1))
        return y


def step_function(v: Tensor) -> Tensor:
    """Return 1 where ``v`` > 0, else 0, with the derivative 1 / (1 + (pi v)^2)."""
    soft = torch.atan(math.pi * v) / math.pi
    return (v > 0).to(v.dtype) + (soft - soft.detach())
