"""A transformer layer with gates over a sliding window of rows: the layer of GTrXL."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_LEAST_BLOCK = 32  # rows of one product: less would be many small ones


class GRUGate(nn.Module):
    """g(x, y) = (1 - z) x + z h, close to x at first, for b > 0.

    r = sigmoid(W_r y + U_r x), z = sigmoid(W_z y + U_z x - b), h = tanh(W_h y + U_h (r x)).
    Source: Parisotto et al. 2020, section 3.2, "Gated-Recurrent-Unit-type gating".
    """

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.w = nn.Linear(width, 3 * width, bias=False)
        self.u = nn.Linear(width, 2 * width, bias=False)
        self.u_h = nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.full((width,), bias))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        (r, z, h), (u_r, u_z) = self.w(y).chunk(3, -1), self.u(x).chunk(2, -1)
        r, z = torch.sigmoid(r + u_r), torch.sigmoid(z + u_z - self.bias)
        return (1 - z) * x + z * torch.tanh(h + self.u_h(r * x))


class GatedLayer(nn.Module):
    """Attention over the last W rows and the row itself, then an MLP, each behind a gate.

    y = g(e, relu(attention(norm(e)))), g(y, relu(mlp(norm(y)))). Positions are relative: the score
    of a query q and a key k of age a is ((q + u) k + (q + v) R_a) / sqrt(d), R_a a learned
    projection of waves of a. Norms stand inside the branches ("identity map reordering").
    Source: Parisotto et al. 2020, sections 3.1-3.2; Dai et al. 2019, section 3.3 (positions).
    """

    ages: Tensor

    def __init__(self, width: int, heads: int, mlp: int, window: int, gate_bias: float) -> None:
        super().__init__()
        self.window, self.heads = window, heads
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.position = nn.Linear(width, width, bias=False)
        self.u, self.v = (nn.Parameter(torch.zeros(heads, width // heads)) for _ in range(2))
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, mlp), nn.ReLU(), nn.Linear(mlp, width), nn.ReLU())
        self.gate, self.mlp_gate = GRUGate(width, gate_bias), GRUGate(width, gate_bias)
        angle = torch.arange(window + 1)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
        waves = torch.cat((angle.sin(), angle.cos()), -1)[:, :width]
        self.register_buffer("ages", waves, persistent=False)  # [W + 1, width]

    def forward(self, rows: Tensor, oldest: Tensor) -> Tensor:
        """Return outputs [T, B, D] of the last T of ``rows`` [W + T, B, D].

        ``oldest`` int64 [T, B]: index in ``rows`` of the oldest one that each output may read.
        """
        window, e = self.window, rows[self.window :]
        normed = self.norm(rows)
        q = self._by_head(self.query(normed[window:]))
        k, v = (self._by_head(x) for x in self.key_value(normed).chunk(2, -1))
        r = self._by_head(self.position(self.ages))
        read = []
        block = max(window, _LEAST_BLOCK)
        for start in range(0, len(e), block):  # a block of n rows reads W + n keys
            queries = slice(start, start + block)
            keys = slice(start, start + window + len(oldest[queries]))
            read.append(self._attend(q[queries], k[keys], v[keys], r, oldest[queries] - start))
        y = self.gate(e, torch.relu(self.out(torch.cat(read).flatten(-2))))
        out: Tensor = self.mlp_gate(y, self.mlp(self.mlp_norm(y)))
        return out

    def _by_head(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], self.heads, -1)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, r: Tensor, oldest: Tensor) -> Tensor:
        """Return [n, B, heads, d] of queries [n, ...] and keys and values [W + n, ...]."""
        index = torch.arange(len(k), device=q.device)
        age = self.window + index[: len(q), None] - index  # [n, W + n]
        near = (age >= 0) & (age <= self.window)
        own = index >= torch.stack(oldest.unbind(0), 1).unsqueeze(-1)  # [B, n, W + n]
        content = torch.einsum("tbhd,sbhd->bhts", q + self.u, k)
        of_age = torch.einsum("tbhd,ahd->bhta", q + self.v, r)
        turn = age.clamp(0, self.window).expand(content.shape)
        score = (content + of_age.gather(-1, turn)) * q.shape[-1] ** -0.5
        weight = F.softmax(torch.where((near & own).unsqueeze(1), score, -torch.inf), -1)
        return torch.einsum("bhts,sbhd->tbhd", weight, v)
