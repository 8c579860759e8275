"""Gated DeltaNet: a matrix memory that replaces what it holds for a key."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.nets.memory.cell import Cell, at_least_float32, make_readout
from rlrun.nets.memory.mamba2 import DecayGate
from rlrun.schema import GatedDeltaNetConfig, MemoryConfig
from rlrun.types import Tree

_CHUNK = 64  # rows of one triangular system


class GatedDeltaNet(Cell):
    """The gated delta rule, ``memory.heads`` heads of d = H / heads numbers.

    q, k = normalised silu(W x), v = silu(W x) [d]; beta = sigmoid(w x + b); alpha as in
    ``DecayGate``
    S_t = S_{t-1} alpha_t (I - beta_t k_t k_t^T) + beta_t v_t k_t^T      [d, d]
    o_t = S_t q_t
    With u_t = beta_t (v_t - alpha_t S_{t-1} k_t) the state is a sum of u k^T that decay, so that
    the u of a chunk of rows solve one triangular system, as in section 3.3. State S [B, heads d d].
    Outputs are a ``Readout`` of o and x, in place of the convolution, norm, gate and skip
    connection of the paper's block (``memory.readout=false``: o).
    Source: Yang et al. 2025, "Gated Delta Networks: Improving Mamba2 with Delta Rule", equation 10
    and section 3.
    """

    def __init__(self, config: MemoryConfig, features: int) -> None:
        assert isinstance(config, GatedDeltaNetConfig)
        super().__init__(config, features)
        self.heads, d = config.heads, config.hidden // config.heads
        self.shape = (config.heads, d, d)
        self.qkv = nn.Linear(features, 3 * config.hidden)
        self.beta = nn.Linear(features, config.heads)
        self.gate = DecayGate(config, features)
        inputs = config.hidden + features
        self.readout = make_readout(self.size, inputs) if config.readout else None

    def initial_state(self, batch: int, device: torch.device) -> Tree:
        return (torch.zeros(batch, self.size * self.shape[-1], device=device),)

    def step(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        q, k, v, beta, log_alpha = self._rows(x)
        with torch.autocast(x.device.type, enabled=False):
            s = log_alpha.exp()[..., None, None] * state[0].reshape(-1, *self.shape)
            predicted = (s * k.unsqueeze(-2)).sum(-1)
            u = beta.unsqueeze(-1) * (v - predicted)
            s = s + u.unsqueeze(-1) * k.unsqueeze(-2)
            o = (s * q.unsqueeze(-2)).sum(-1)
        return self._read(o, x), (s.flatten(1),)

    def unroll(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        o, s = self._scan(x, state, torch.zeros_like(x[..., 0], dtype=torch.bool))
        return self._read(o, x), s

    def unroll_episodes(self, x: Tensor, first: Tensor, state: Tree) -> Tensor:
        """Return outputs [T, B, size]; what is before a ``first`` row, bool [T, B], is masked."""
        return self._read(self._scan(x, state, first.to(x.device))[0], x)

    def state_after(self, x: Tensor, lengths: Tensor, state: Tree) -> Tree:
        if not len(x):
            return state
        row = torch.arange(len(x), device=x.device).unsqueeze(-1)
        first = torch.zeros_like(x[..., 0], dtype=torch.bool)
        return self._scan(x, state, first, row < lengths)[1]

    def _read(self, o: Tensor, x: Tensor) -> Tensor:
        both = torch.cat((o.flatten(-2), at_least_float32(x)), -1)
        return o.flatten(-2) if self.readout is None else self.readout(both)

    def _rows(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return q, k, v [*, heads, d], beta and log alpha [*, heads] of inputs [*, F]."""
        qkv = F.silu(at_least_float32(self.qkv(x)))
        q, k, v = qkv.reshape(*x.shape[:-1], 3, self.heads, -1).unbind(-3)
        beta = torch.sigmoid(at_least_float32(self.beta(x)))
        return F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, beta, self.gate(x)[1]

    def _scan(
        self, x: Tensor, state: Tree, first: Tensor, kept: Tensor | None = None
    ) -> tuple[Tensor, Tree]:
        """Return o [T, B, heads, d] and the state. Rows not ``kept``, bool [T, B], change none."""
        rows = self._rows(x)
        if kept is not None:  # beta and log alpha of others are 0
            rows = (*rows[:3], *(torch.where(kept.unsqueeze(-1), r, 0) for r in rows[3:]))
        s, out = state[0].reshape(-1, *self.shape), []
        with torch.autocast(x.device.type, enabled=False):
            for start in range(0, len(x), _CHUNK):
                part = slice(start, start + _CHUNK)
                o, s = _chunk(s, first[part], *(r[part] for r in rows))
                out.append(o)
        return torch.cat(out), (s.flatten(1),)


def _chunk(s: Tensor, first: Tensor, *rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return o [T, B, heads, d] and S [B, heads, d, d] after T rows, from S = ``s``.

    With G_ts the product of alpha after row s up to t, 0 across a ``first`` row, and g_t that from
    the chunk's start: u_t + beta_t sum_{s<t} G_ts (k_t k_s) u_s = beta_t (v_t - g_t S k_t),
    o_t = g_t S q_t + sum_{s<=t} G_ts (q_t k_s) u_s.
    """
    q, k, v, beta, log_alpha = rows
    logs, episode = log_alpha.movedim(0, -1), first.cumsum(0).movedim(0, -1)
    same = (episode.unsqueeze(-1) == episode.unsqueeze(-2)).tril().unsqueeze(1)  # [B, 1, T, T]
    apart = torch.where(same.tril(-1), logs.unsqueeze(-1), 0).cumsum(-2)
    g_ts = apart.masked_fill(~same, -torch.inf).exp()  # [B, heads, T, T]
    before = (episode > 0).unsqueeze(1)
    g = logs.cumsum(-1).masked_fill(before, -torch.inf).exp().unsqueeze(-1)
    weight = beta.movedim(0, -1).unsqueeze(-1)
    system = weight * g_ts * torch.einsum("tbhd,sbhd->bhts", k, k)
    predicted = g * torch.einsum("bhvk,tbhk->bhtv", s, k)
    right = weight * (v.movedim(0, -2) - predicted)
    u = torch.linalg.solve_triangular(system.tril(-1), right, upper=False, unitriangular=True)
    o = g * torch.einsum("bhvk,tbhk->bhtv", s, q)
    o = o + (g_ts * torch.einsum("tbhd,sbhd->bhts", q, k)) @ u
    last = g_ts[..., -1, :].unsqueeze(-1) * u
    s = g[..., -1:, :] * s + torch.einsum("bhsv,sbhk->bhvk", last, k)
    return o.movedim(-2, 0), s
