"""Memories whose state is a matrix per head: mLSTM, Mamba-2 and Gated DeltaNet."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.nets.memory.cell import Cell, Readout, ScanCell, at_least_float32, make_readout
from rlrun.schema import DecayConfig, GatedDeltaNetConfig, Mamba2Config, MemoryConfig, MLSTMConfig
from rlrun.types import Tree


class MLSTM(ScanCell):
    """The matrix memory of xLSTM, ``memory.heads`` heads of d = H / heads numbers.

    q, k sqrt(d), v = W x + b [d]; i, f = w x + b and o = sigmoid(W x + b); log f' = log sigmoid(f)
    m_t = max(log f'_t + m_{t-1}, i_t)                   stabiliser
    f*_t = exp(log f'_t + m_{t-1} - m_t), i*_t = exp(i_t - m_t)
    C_t = f*_t C_{t-1} + i*_t v_t k_t^T                  [d, d]
    n_t = f*_t n_{t-1} + i*_t k_t                        [d]
    h_t = o_t * C_t q_t / max(|n_t^T q_t|, exp(-m_t))
    Outputs do not depend on the later m, so m needs no gradient. n is the last row of C. State (C
    [B, heads (d + 1) d], m [B, heads]). m is one maximum per row; C and n unroll as a scan. The
    paper's block adds a convolution, a norm of each head and projections around it; here a
    ``Readout`` follows (``memory.readout=false``: nothing).
    Initialisation: biases of f evenly spread over [``forget_bias`` / 2, ``forget_bias``] as in the
    authors' code, those of i zero with weights of std 0.1, else those of nn.Linear.
    Source: Beck et al. 2024, "xLSTM: Extended Long Short-Term Memory", equations 19-27 and
    appendix A.
    """

    def __init__(self, config: MemoryConfig, features: int) -> None:
        assert isinstance(config, MLSTMConfig)
        super().__init__(config, features)
        self.heads, d = config.heads, config.hidden // config.heads
        self.shape = (config.heads, d + 1, d)
        self.kv, self.qo = (nn.Linear(features, 2 * config.hidden) for _ in range(2))
        self.gate = nn.Linear(features, 2 * config.heads)  # i, f
        with torch.no_grad():
            self.gate.weight[: config.heads].normal_(0, 0.1)
            self.gate.bias[: config.heads] = 0
            spread = torch.linspace(config.forget_bias / 2, config.forget_bias, config.heads)
            self.gate.bias[config.heads :] = spread
        self.readout: Readout | None = make_readout(self.size) if config.readout else None

    def initial_state(self, batch: int, device: torch.device) -> Tree:
        m = torch.zeros(batch, self.heads, device=device)
        return (*super().initial_state(batch, device), m)

    def rows(self, x: Tensor, state: Tree, first: Tensor | None) -> tuple[Tensor, Tensor, Tree]:
        k, v = self._by_head(self.kv(x))
        write, forget = at_least_float32(self.gate(x)).chunk(2, -1)
        keep = F.logsigmoid(forget)
        m = _stabilisers(write.detach(), keep.detach(), state[1].detach(), first)
        before = torch.cat((state[1].unsqueeze(0), m[:-1]))
        if first is not None:
            before = torch.where(first.unsqueeze(-1), 0, before)
        decay, weight = torch.exp(keep + before - m), torch.exp(write - m)
        one = torch.ones_like(v[..., :1])
        rows = weight[..., None, None] * torch.cat((v, one), -1).unsqueeze(-1)
        drive = rows * (k * k.shape[-1] ** -0.5).unsqueeze(-2)
        return decay[..., None, None], drive, (m,)

    def read(self, s: Tensor, x: Tensor, *others: Tensor) -> Tensor:
        q, o = self._by_head(self.qo(x))
        read = (s @ q.unsqueeze(-1)).squeeze(-1)  # C q, then n q
        least = torch.exp(-others[0]).clamp(min=torch.finfo(read.dtype).tiny)
        scale = torch.maximum(read[..., -1].abs(), least).unsqueeze(-1)
        h = (torch.sigmoid(o) * read[..., :-1] / scale).flatten(-2)
        return h if self.readout is None else self.readout(h)

    def _by_head(self, x: Tensor) -> tuple[Tensor, ...]:
        parts = at_least_float32(x).reshape(*x.shape[:-1], 2, self.heads, -1)
        return parts.unbind(-3)


def _stabilisers(write: Tensor, keep: Tensor, m: Tensor, first: Tensor | None) -> Tensor:
    """Return m [T, B, heads] after every row; m is 0 before a ``first`` row."""
    rows = []
    for t in range(len(write)):
        if first is not None:
            m = torch.where(first[t].unsqueeze(-1), 0, m)
        m = torch.maximum(keep[t] + m, write[t])
        rows.append(m)
    return torch.stack(rows)


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
            held = (s * k.unsqueeze(-2)).sum(-1)
            u = beta.unsqueeze(-1) * (v - held)
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
    own = (episode.unsqueeze(-1) == episode.unsqueeze(-2)).tril().unsqueeze(1)  # [B, 1, T, T]
    apart = torch.where(own.tril(-1), logs.unsqueeze(-1), 0).cumsum(-2)
    g_ts = apart.masked_fill(~own, -torch.inf).exp()  # [B, heads, T, T]
    before = (episode > 0).unsqueeze(1)
    g = logs.cumsum(-1).masked_fill(before, -torch.inf).exp().unsqueeze(-1)
    weight = beta.movedim(0, -1).unsqueeze(-1)
    system = weight * g_ts * torch.einsum("tbhd,sbhd->bhts", k, k)
    held = g * torch.einsum("bhvk,tbhk->bhtv", s, k)
    right = weight * (v.movedim(0, -2) - held)
    u = torch.linalg.solve_triangular(system.tril(-1), right, upper=False, unitriangular=True)
    o = g * torch.einsum("bhvk,tbhk->bhtv", s, q)
    o = o + (g_ts * torch.einsum("tbhd,sbhd->bhts", q, k)) @ u
    last = g_ts[..., -1, :].unsqueeze(-1) * u
    s = g[..., -1:, :] * s + torch.einsum("bhsv,sbhk->bhvk", last, k)
    return o.movedim(-2, 0), s
