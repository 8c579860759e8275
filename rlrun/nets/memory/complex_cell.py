"""Base class of the memories whose state is complex and linear: they unroll as one scan."""

from abc import abstractmethod
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from rlrun.functional.scan import linear_scan
from rlrun.nets.memory.custom import Cell
from rlrun.types import Tree

_EDGE = 1e-6  # draws stay this far from 0 and 1, where a logarithm is infinite


@runtime_checkable
class EpisodeMemory(Protocol):
    """A memory that unrolls over rows in which episodes begin, faster than in pieces."""

    def unroll_episodes(self, x: Tensor, first: Tensor, state: Tree) -> Tensor:
        """Return outputs [T, B, size] of ``x`` [T, B, F]; the state is zero before ``first`` rows.

        ``first`` bool [T, B].
        """


class ComplexCell(Cell):
    """Memories s_t = lambda s_{t-1} + d_t of N complex units whose decays do not change over time.

    State (real part, imaginary part), each [B, N]. The scan is in float32 at least, on complex
    numbers; ``step`` is written in real ones, which every exporter knows.
    """

    units: int  # N

    @abstractmethod
    def decay(self) -> Tensor:
        """Return lambda [N, 2], real and imaginary parts, |lambda| <= 1."""

    @abstractmethod
    def drive(self, x: Tensor) -> Tensor:
        """Return d [*, N, 2] of inputs [*, F], at least float32."""

    @abstractmethod
    def read(self, s: Tensor, x: Tensor) -> Tensor:
        """Return outputs [*, size] of states [*, N, 2] and inputs [*, F]."""

    def initial_state(self, batch: int, device: torch.device) -> Tree:
        zero = torch.zeros(batch, self.units, device=device)
        return (zero, zero.clone())

    def step(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        (re, im), (a, b), d = state, self.decay().unbind(-1), self.drive(x)
        state = (a * re - b * im + d[..., 0], a * im + b * re + d[..., 1])
        return self.read(torch.stack(state, -1), x), state

    def unroll(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        s = self._scan(x, state, None)
        return self.read(s, x), s[-1].unbind(-1)

    def unroll_episodes(self, x: Tensor, first: Tensor, state: Tree) -> Tensor:
        return self.read(self._scan(x, state, first), x)

    def state_after(self, x: Tensor, lengths: Tensor, state: Tree) -> Tree:
        if not len(x):
            return state
        s = self._scan(x, state, None)
        last = s[(lengths - 1).clamp(min=0), torch.arange(len(lengths), device=s.device)]
        own = (lengths > 0).unsqueeze(-1)
        return tuple(torch.where(own, last[..., i], state[i]) for i in (0, 1))

    def _scan(self, x: Tensor, state: Tree, first: Tensor | None) -> Tensor:
        """Return the states [T, B, N, 2] after all rows; the decay of a ``first`` row is 0."""
        decay = torch.view_as_complex(self.decay())
        if first is not None:
            decay = torch.where(first.to(x.device).unsqueeze(-1), 0, decay)
        drive = torch.view_as_complex(self.drive(x))
        return torch.view_as_real(linear_scan(decay, drive, torch.complex(*state)))


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


def at_least_float32(x: Tensor) -> Tensor:
    """Return ``x`` in float32, or float64 where it is: sums over many rows need it."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
