"""Memories with a complex linear state (LRU, RTU and FFM), which unroll as one scan."""

import math
from abc import abstractmethod
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.functional.scan import linear_scan
from rlrun.nets.memory.cell import ScanCell, at_least_float32, make_readout
from rlrun.schema import FFMConfig, LRUConfig, MemoryConfig, RTUConfig
from rlrun.types import Tree

_EDGE = 1e-6  # distance of samples from 0 and 1, where a logarithm is infinite


@runtime_checkable
class EpisodeMemory(Protocol):
    """A memory that unrolls over rows with episode starts faster than in pieces."""

    def unroll_episodes(self, x: Tensor, first: Tensor, state: Tree) -> Tensor:
        """Return outputs [T, B, size] of ``x`` [T, B, F]; the state is zero before ``first`` rows.

        ``first`` bool [T, B].
        """


class ComplexCell(ScanCell):
    """Base class of memories s_t = lambda s_{t-1} + d_t of N complex units with constant decays.

    State (real part, imaginary part), each [B, N]. The scan uses complex numbers of at least
    float32. ``step`` uses real numbers, which every exporter supports.
    """

    units: int  # N

    @abstractmethod
    def decay(self) -> Tensor:
        """Return lambda [N, 2], real and imaginary parts, |lambda| <= 1."""

    @abstractmethod
    def drive(self, x: Tensor) -> Tensor:
        """Return d [*, N, 2] of inputs [*, F], at least float32."""

    def initial_state(self, batch: int, device: torch.device) -> Tree:
        zero = torch.zeros(batch, self.units, device=device)
        return (zero, zero.clone())

    def step(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        (re, im), (a, b), d = state, self.decay().unbind(-1), self.drive(x)
        state = (a * re - b * im + d[..., 0], a * im + b * re + d[..., 1])
        return self.read(torch.stack(state, -1), x), state

    def carried(self, s: Tensor) -> Tree:
        return s.unbind(-1)

    def _scan(self, x: Tensor, state: Tree, first: Tensor | None) -> tuple[Tensor, Tree]:
        """Return the states [T, B, N, 2] after all rows; the decay of a ``first`` row is 0."""
        decay = torch.view_as_complex(self.decay())
        if first is not None:
            decay = torch.where(first.unsqueeze(-1), 0, decay)
        drive = torch.view_as_complex(self.drive(x))
        return torch.view_as_real(linear_scan(decay, drive, torch.complex(*state))), ()


def ring(units: int, r_min: float, r_max: float, max_phase: float) -> tuple[nn.Parameter, ...]:
    """Return nu_log and theta_log [N] of lambda = exp(-exp(nu_log) + i exp(theta_log)).

    lambda is uniform on the ring r_min <= |lambda| <= r_max, phases in [0, max_phase].
    Source: Orvieto et al. 2023, lemma 3.2.
    """
    u, v = (torch.rand(units).clamp(_EDGE, 1 - _EDGE) for _ in range(2))
    square = (u * (r_max**2 - r_min**2) + r_min**2).clamp(max=1 - _EDGE)  # else nu may be 0
    nu = -0.5 * torch.log(square)
    return nn.Parameter(nu.log()), nn.Parameter((max_phase * v).log())


def polar(nu_log: Tensor, theta_log: Tensor) -> Tensor:
    """Return exp(-exp(nu_log) + i exp(theta_log)) [N] as real and imaginary parts [N, 2]."""
    r, theta = torch.exp(-nu_log.exp()), theta_log.exp()
    return torch.stack((r * theta.cos(), r * theta.sin()), -1)


class LRU(ComplexCell):
    """Linear recurrent unit: s_t = lambda s_{t-1} + gamma B x_t, y_t = Re(C s_t) + D x_t.

    lambda = exp(-exp(nu_log) + i exp(theta_log)), so |lambda| < 1 for all parameters. gamma =
    exp(gamma_log) starts at sqrt(1 - |lambda|^2), which preserves the size of states. N = H complex
    units. The paper's blocks add a norm before the layer, and a gated linear unit and a skip
    connection after it. Here a ``Readout`` follows (``memory.readout=false``: nothing). D is a
    matrix because inputs and outputs differ in width (the paper's is diagonal). Initialisation:
    ring of lambda; B, C of variance 1 / (2 F) and 1 / N for each of the two parts, D of variance 1
    / F. Source: Orvieto et al. 2023, section 3 and appendix A.
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

    def read(self, s: Tensor, x: Tensor, *others: Tensor) -> Tensor:
        """Return the readout of Re(C s) + D x. The sign of Im(C) Im(s) is part of the parameter."""
        y = F.linear(s.flatten(-2), self.c.flatten(1)) + F.linear(x, self.d)
        return y if self.readout is None else self.readout(y)


class RTU(ComplexCell):
    """Recurrent trace units (c1, c2), N pairs, outputs of width 2 N. f = ``memory.activation``.

    With g = r cos theta, phi = r sin theta, gamma = sqrt(1 - r^2), r = exp(-exp(nu_log)), theta =
    exp(theta_log), and W1, W2 acting on the input:
    c1_t = g c1_{t-1} - phi c2_{t-1} + gamma W1 x_t
    c2_t = g c2_{t-1} + phi c1_{t-1} + gamma W2 x_t
    Linear: this is the state, f(c1) and f(c2) are the outputs, and it unrolls as a scan. Nonlinear:
    f is applied to the state itself, which unrolls row by row. Unlike in the LRU, no matrix C mixes
    the units after the recurrence, and gamma follows r. The paper trains RTUs by real-time
    recurrent learning; here all memories learn by backpropagation through the window.
    Initialisation: r and theta on a ring as in the LRU, W of variance 1 / F.
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

    def read(self, s: Tensor, x: Tensor, *others: Tensor) -> Tensor:
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

    def _scan(self, x: Tensor, state: Tree, first: Tensor | None) -> tuple[Tensor, Tree]:
        if self.linear:
            return super()._scan(x, state, first)
        decay, states = self.decay(), []
        keep = None if first is None else ~first.to(x.device).unsqueeze(-1)
        for t, d in enumerate(self.drive(x)):
            if keep is not None:
                state = tuple(torch.where(keep[t], s, 0) for s in state)
            state = self._nonlinear(decay, d, state)
            states.append(torch.stack(state, -1))
        return torch.stack(states), ()


_LEAST = 1e-8  # of alpha: every trace decays
_FUDGE = 0.01  # between the largest alpha and the overflow
_FORGOTTEN = 0.01  # the slowest trace starts at this share after ``horizon`` rows


class FFM(ComplexCell):
    """S_t = exp(-alpha + i omega) S_{t-1} + (l1(x_t) sigmoid(l2(x_t))) 1^T of m traces, c contexts.

    alpha [m] and omega [c] are learned; N = m c. The output is y_t = LN(l3(Re S_t || Im S_t)) g_t +
    l5(x_t) (1 - g_t) with g_t = sigmoid(l4(x_t)), LN without affine parameters.
    alpha is limited to [1e-8, ln(max of float64) / horizon - 0.01], the paper's bound, beyond which
    its cumulative sum overflows within ``horizon`` rows. The scan used here would not overflow.
    alpha starts evenly spread from the limit to ln(100) / horizon, omega at 2 pi over periods
    evenly spread from 1 to ``horizon``.
    Source: Morad et al. 2023, "Reinforcement Learning with Fast and Forgetful Memory", section 3;
    limits and initial values are those of the authors' code.
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

    def read(self, s: Tensor, x: Tensor, *others: Tensor) -> Tensor:
        through, gate = self.output(x).chunk(2, -1)
        gate = gate.sigmoid()
        z = F.layer_norm(self.mix(s.flatten(-2)), (self.size,))
        out: Tensor = z * gate + through * (1 - gate)
        return out
