"""RTU: diagonal complex recurrences in cosine form, linear or with a nonlinear state."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.nets.memory.complex_cell import ComplexCell, at_least_float32, polar, ring
from rlrun.schema import MemoryConfig, RTUConfig
from rlrun.types import Tree


class RTU(ComplexCell):
    """Recurrent trace units (c1, c2), N pairs, outputs of width 2 N. f = ``memory.activation``.

    With g = r cos theta, phi = r sin theta, gamma = sqrt(1 - r^2), r = exp(-exp(nu_log)), theta =
    exp(theta_log), and W1, W2 acting on the input:
    c1_t = g c1_{t-1} - phi c2_{t-1} + gamma W1 x_t
    c2_t = g c2_{t-1} + phi c1_{t-1} + gamma W2 x_t
    Linear: this is the state and f(c1), f(c2) are the outputs; it unrolls as a scan. Nonlinear: f
    is applied to the state itself, which unrolls row by row. Unlike the LRU no matrix C mixes the
    units behind the recurrence and gamma follows r. The paper trains RTUs by real-time recurrent
    learning; here they learn by backpropagation through the window, as all memories do.
    Initialisation: r and theta on a ring as the LRU, W of variance 1 / F.
    Source: Elelimy et al. 2024, "Real-Time Recurrent Learning using Trace Units in Reinforcement
    Learning", section 4.
    """

    def __init__(self, config: MemoryConfig, features: int) -> None:
        assert isinstance(config, RTUConfig)
        super().__init__(config, features)
        n = self.units = config.hidden
        self.size = 2 * n
        self.linear = config.recurrence == "linear"
        self.f = torch.relu if config.activation == "relu" else torch.tanh
        self.nu_log, self.theta_log = ring(n, config.r_min, config.r_max, config.max_phase)
        self.w = nn.Parameter(torch.randn(n, 2, features) * features**-0.5)

    def decay(self) -> Tensor:
        return polar(self.nu_log, self.theta_log)

    def drive(self, x: Tensor) -> Tensor:
        gamma = torch.sqrt(-torch.expm1(-2 * self.nu_log.exp()))
        weight = gamma[:, None, None] * self.w
        d = at_least_float32(F.linear(x, weight.flatten(0, 1)))
        return d.reshape(*x.shape[:-1], self.units, 2)

    def read(self, s: Tensor, x: Tensor) -> Tensor:
        s = s.mT.flatten(-2)  # c1 of all units, then c2
        return self.f(s) if self.linear else s

    def step(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        if self.linear:
            return super().step(x, state)
        state = self._nonlinear(self.decay(), self.drive(x), state)
        return self.read(torch.stack(state, -1), x), state

    def _nonlinear(self, decay: Tensor, d: Tensor, state: Tree) -> Tree:
        (c1, c2), (g, phi) = state, decay.unbind(-1)
        return self.f(g * c1 - phi * c2 + d[..., 0]), self.f(g * c2 + phi * c1 + d[..., 1])

    def _scan(self, x: Tensor, state: Tree, first: Tensor | None) -> Tensor:
        if self.linear:
            return super()._scan(x, state, first)
        decay, states = self.decay(), []
        keep = None if first is None else ~first.to(x.device).unsqueeze(-1)
        for t, d in enumerate(self.drive(x)):
            if keep is not None:
                state = tuple(torch.where(keep[t], s, 0) for s in state)
            state = self._nonlinear(decay, d, state)
            states.append(torch.stack(state, -1))
        return torch.stack(states)
