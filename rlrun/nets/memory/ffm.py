"""Fast and forgetful memory: decaying, oscillating sums of gated inputs."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.nets.memory.complex_cell import ComplexCell, at_least_float32
from rlrun.schema import FFMConfig, MemoryConfig

_LEAST = 1e-8  # of alpha: every trace decays
_FUDGE = 0.01  # between the largest alpha and the overflow
_FORGOTTEN = 0.01  # the slowest trace starts at this share after ``horizon`` rows


class FFM(ComplexCell):
    """S_t = exp(-alpha + i omega) S_{t-1} + (l1(x_t) sigmoid(l2(x_t))) 1^T of m traces, c contexts.

    alpha [m] and omega [c] are learned; N = m c. The output is y_t = LN(l3(Re S_t || Im S_t)) g_t +
    l5(x_t) (1 - g_t) with g_t = sigmoid(l4(x_t)), LN without affine parameters.
    alpha is limited to [1e-8, ln(max of float64) / horizon - 0.01], the paper's bound on what its
    cumulative sum can hold over ``horizon`` rows; the scan here would not overflow beyond it.
    alpha starts evenly spread from the limit to ln(100) / horizon, omega at 2 pi over periods
    evenly spread from 1 to ``horizon``.
    Source: Morad et al. 2023, "Reinforcement Learning with Fast and Forgetful Memory", section 3;
    limits and start values are those of the authors' code.
    """

    def __init__(self, config: MemoryConfig, features: int) -> None:
        assert isinstance(config, FFMConfig)
        super().__init__(config, features)
        m, c, horizon = config.traces, config.context, config.horizon
        self.traces, self.context, self.units = m, c, m * c
        self.limit = math.log(torch.finfo(torch.float64).max) / horizon - _FUDGE
        slow = min(-math.log(_FORGOTTEN) / horizon, self.limit)
        self.alpha = nn.Parameter(torch.linspace(self.limit - _FUDGE, slow, m))
        self.omega = nn.Parameter(2 * math.pi / torch.linspace(1, horizon, c))
        self.input = nn.Linear(features, 2 * m)  # l1, l2
        self.output = nn.Linear(features, 2 * self.size)  # l5, l4
        self.mix = nn.Linear(2 * self.units, self.size)  # l3

    def decay(self) -> Tensor:
        alpha = self.alpha.clamp(_LEAST, self.limit)
        r = torch.exp(-alpha).unsqueeze(-1)
        parts = (r * self.omega.cos(), r * self.omega.sin())
        return torch.stack([p.flatten() for p in parts], -1)

    def drive(self, x: Tensor) -> Tensor:
        value, gate = at_least_float32(self.input(x)).chunk(2, -1)
        trace = F.pad((value * gate.sigmoid()).unsqueeze(-1), (0, 1))  # real
        d = trace.unsqueeze(-2).expand(*trace.shape[:-1], self.context, 2)
        return d.reshape(*x.shape[:-1], self.units, 2)

    def read(self, s: Tensor, x: Tensor) -> Tensor:
        through, gate = self.output(x).chunk(2, -1)
        gate = gate.sigmoid()
        z = F.layer_norm(self.mix(s.flatten(-2)), (self.size,))
        out: Tensor = z * gate + through * (1 - gate)
        return out
