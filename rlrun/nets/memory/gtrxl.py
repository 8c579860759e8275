"""GTrXL: a gated transformer over a window of rows, whose state is that window."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.nets.memory.cell import Cell, at_least_float32
from rlrun.schema import GTrXLConfig, MemoryConfig
from rlrun.types import Tree

_LEAST_BLOCK = 32  # rows of one product; fewer would make many small products


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
    """Attention over the last W rows and the row itself, then an MLP, each followed by a gate.

    y = g(e, relu(attention(norm(e)))), g(y, relu(mlp(norm(y)))). Positions are relative: the score
    of a query q and a key k of age a is ((q + u) k + (q + v) R_a) / sqrt(d), where R_a is a learned
    projection of waves of a. Normalisation is inside the branches ("identity map reordering").
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

        ``oldest`` int64 [T, B]: index in ``rows`` of the oldest row that each output may read.
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
        present = index >= torch.stack(oldest.unbind(0), 1).unsqueeze(-1)  # [B, n, W + n]
        content = torch.einsum("tbhd,sbhd->bhts", q + self.u, k)
        of_age = torch.einsum("tbhd,ahd->bhta", q + self.v, r)
        turn = age.clamp(0, self.window).expand(content.shape)
        score = (content + of_age.gather(-1, turn)) * q.shape[-1] ** -0.5
        weight = F.softmax(torch.where((near & present).unsqueeze(1), score, -torch.inf), -1)
        return torch.einsum("bhts,sbhd->tbhd", weight, v)


class GTrXL(Cell):
    """Gated Transformer-XL; a layer attends to the ``memory.window`` = W rows before its own.

    State: the inputs of each layer at the last W rows, [B, W D], oldest first, and the number [B,
    1] of rows filled since the episode began. Zeros are the state of an empty window, so attention
    never reaches past a reset. Cached rows and those of an unroll form one sequence, computed in
    one batch. The paper stops gradients at the cache. Here states from the replay or the burn-in
    have no gradients, and the rows of one unroll pass gradients on to each other as steps do.
    Source: Parisotto et al. 2020, "Stabilizing Transformers for Reinforcement Learning", section 3.
    """

    def __init__(self, config: MemoryConfig, features: int) -> None:
        assert isinstance(config, GTrXLConfig)
        super().__init__(config, features)
        c, self.window = config, config.window
        self.embed = nn.Linear(features, c.hidden)
        layers = (
            GatedLayer(c.hidden, c.heads, c.mlp, c.window, c.gate_bias) for _ in range(c.layers)
        )
        self.layers = nn.ModuleList(layers)

    def initial_state(self, batch: int, device: torch.device) -> Tree:
        widths = [self.window * self.size] * len(self.layers)
        return tuple(torch.zeros(batch, width, device=device) for width in (*widths, 1))

    def step(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        out, state = self.unroll(x.unsqueeze(0), state)
        return out[0], state

    def unroll(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Return outputs [T, B, D] of ``x`` [T, B, F], and the state after row T-1."""
        out, rows = self._run(x, state, None)
        caches = (torch.cat(tuple(r[len(r) - self.window :]), -1) for r in rows)
        return out, (*caches, (state[-1] + len(x)).clamp(max=self.window))

    def unroll_episodes(self, x: Tensor, first: Tensor, state: Tree) -> Tensor:
        """Return outputs [T, B, D] of ``x`` [T, B, F]; the window is empty at ``first`` rows."""
        return self._run(x, state, first.to(x.device))[0]

    def state_after(self, x: Tensor, lengths: Tensor, state: Tree) -> Tree:
        """Return the states after the first ``lengths[b]`` rows of ``x`` [T, B, F]."""
        if not len(x):
            return state
        _, rows = self._run(x, state, None)
        slot = torch.arange(self.window, device=x.device).unsqueeze(-1) + lengths
        column = torch.arange(len(lengths), device=x.device)
        caches = (torch.cat(tuple(r[slot, column]), -1) for r in rows)
        filled = (state[-1] + lengths.unsqueeze(-1)).clamp(max=self.window)
        return (*caches, filled)

    def _run(self, x: Tensor, state: Tree, first: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """Return outputs [T, B, D] and the inputs [W + T, B, D] of every layer."""
        *caches, filled = state
        oldest = (self.window - filled.squeeze(-1)).long().expand(x.shape[:2])
        if first is not None:
            row = torch.arange(len(x), device=x.device).unsqueeze(-1) + self.window
            oldest = torch.where(first, row, oldest).cummax(0).values
        e, inputs = at_least_float32(self.embed(x)), []
        for layer, cache in zip(self.layers, caches, strict=True):
            rows = torch.cat((torch.stack(cache.chunk(self.window, -1)), e))
            inputs.append(rows)
            e = layer(rows, oldest)
        return e, inputs
