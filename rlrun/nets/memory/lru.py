"""LRU: a diagonal complex linear recurrence with a stable parametrisation."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.nets.memory.complex_cell import ComplexCell, at_least_float32, polar, ring
from rlrun.nets.memory.readout import make_readout
from rlrun.schema import LRUConfig, MemoryConfig


class LRU(ComplexCell):
    """Linear recurrent unit: s_t = lambda s_{t-1} + gamma B x_t, y_t = Re(C s_t) + D x_t.

    lambda = exp(-exp(nu_log) + i exp(theta_log)), so that |lambda| < 1 for all parameters; gamma =
    exp(gamma_log) starts at sqrt(1 - |lambda|^2), which keeps the states' size. N = H complex
    units. The paper's blocks add a norm before the layer, a gated linear unit and a skip connection
    behind it; here a ``Readout`` is behind it (``memory.readout=false``: nothing). D is a matrix,
    since inputs and outputs differ in width (the paper's is diagonal).
    Initialisation: ring of lambda; B, C of variance 1 / (2 F) and 1 / N for each of the two parts,
    D of variance 1 / F.
    Source: Orvieto et al. 2023, section 3 and appendix A.
    """

    def __init__(self, config: MemoryConfig, features: int) -> None:
        assert isinstance(config, LRUConfig)
        super().__init__(config, features)
        n = self.units = config.hidden
        self.nu_log, self.theta_log = ring(n, config.r_min, config.r_max, config.max_phase)
        self.b = nn.Parameter(torch.randn(n, 2, features) * (2 * features) ** -0.5)
        self.c = nn.Parameter(torch.randn(self.size, n, 2) * n**-0.5)
        self.d = nn.Parameter(torch.randn(self.size, features) * features**-0.5)
        with torch.no_grad():
            size = polar(self.nu_log, self.theta_log).square().sum(-1)
            self.gamma_log = nn.Parameter((1 - size).log() / 2)
        self.readout = make_readout(self.size) if config.readout else None

    def decay(self) -> Tensor:
        return polar(self.nu_log, self.theta_log)

    def drive(self, x: Tensor) -> Tensor:
        weight = self.gamma_log.exp()[:, None, None] * self.b
        d = at_least_float32(F.linear(x, weight.flatten(0, 1)))
        return d.reshape(*x.shape[:-1], self.units, 2)

    def read(self, s: Tensor, x: Tensor) -> Tensor:
        """Return Re(C s) + D x, read out; the sign of Im(C) Im(s) is part of the parameter."""
        y = F.linear(s.flatten(-2), self.c.flatten(1)) + F.linear(x, self.d)
        return y if self.readout is None else self.readout(y)
