"""Mamba-2: a selective state space model whose decays are one number per head."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.nets.memory.cell import Readout, ScanCell, at_least_float32, make_readout
from rlrun.schema import DecayConfig, Mamba2Config, MemoryConfig


class DecayGate(nn.Module):
    """(dt, log of the decay exp(A dt)) with dt = softplus(w x + b), A = -exp(a_log), of each head.

    b starts where dt at x = 0 is log-evenly spread over [``dt_min``, ``dt_max``], and A at -1, so
    that the time scales of heads range from 1 / dt_max to 1 / dt_min rows.
    """

    def __init__(self, config: DecayConfig, features: int) -> None:
        super().__init__()
        self.input = nn.Linear(features, config.heads)
        self.a_log = nn.Parameter(torch.zeros(config.heads))
        ends = math.log10(config.dt_min), math.log10(config.dt_max)
        with torch.no_grad():
            self.input.bias.copy_(torch.logspace(*ends, config.heads).expm1().log())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        dt = F.softplus(at_least_float32(self.input(x)))
        return dt, -self.a_log.exp() * dt


class Mamba2(ScanCell):
    """State space duality: ``memory.heads`` heads of p = H / heads channels, n = ``state_size``.

    u [p] of each head, B, C [n] of all heads = silu(W x); z [H] = W x; dt and A as in ``DecayGate``
    S_t = exp(A dt_t) S_{t-1} + dt_t u_t B_t^T           [p, n]
    y_t = (S_t C_t + D u_t) * silu(z_t)
    The decays are numbers, so a window is a scan. State S [B, heads p n]. The paper's block also
    has a convolution over four rows before silu, and a norm before its output projection; here a
    ``Readout`` follows (``memory.readout=false``: nothing).
    Initialisation: D one, W as in nn.Linear.
    Source: Dao & Gu 2024, "Transformers are SSMs: Generalized Models and Efficient Algorithms
    Through Structured State Space Duality", sections 2.1 and 7.
    """

    def __init__(self, config: MemoryConfig, features: int) -> None:
        assert isinstance(config, Mamba2Config)
        super().__init__(config, features)
        h, self.n = config.hidden, config.state_size
        self.shape = (config.heads, h // config.heads, self.n)
        self.ub = nn.Linear(features, h + self.n)
        self.cz = nn.Linear(features, self.n + h)
        self.gate = DecayGate(config, features)
        self.d = nn.Parameter(torch.ones(config.heads, 1))
        self.readout: Readout | None = make_readout(self.size) if config.readout else None

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        dt, log_decay = self.gate(x)
        u, b = self._ub(x)
        drive = (dt.unsqueeze(-1) * u).unsqueeze(-1) * b[..., None, None, :]
        return log_decay.exp()[..., None, None], drive

    def read(self, s: Tensor, x: Tensor, *others: Tensor) -> Tensor:
        c, z = torch.split(at_least_float32(self.cz(x)), [self.n, self.size], -1)
        read = (s * F.silu(c)[..., None, None, :]).sum(-1) + self.d * self._ub(x)[0]
        y = read.flatten(-2) * F.silu(z)
        return y if self.readout is None else self.readout(y)

    def _ub(self, x: Tensor) -> tuple[Tensor, Tensor]:
        u, b = torch.split(F.silu(at_least_float32(self.ub(x))), [self.size, self.n], -1)
        return u.reshape(*x.shape[:-1], *self.shape[:2]), b
