"""The cells of xLSTM, with exponential gates: mLSTM (a matrix memory) and sLSTM."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.nets.memory.cell import Readout, RowCell, ScanCell, at_least_float32, make_readout
from rlrun.schema import MemoryConfig, MLSTMConfig, SLSTMConfig
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
        ones = torch.ones_like(v[..., :1])
        rows = weight[..., None, None] * torch.cat((v, ones), -1).unsqueeze(-1)
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


class SLSTM(RowCell):
    """The scalar memory of xLSTM with H units in ``memory.heads`` heads.

    z = tanh(z~), o = sigmoid(o~), log f' = log sigmoid(f~) with z~, i~, f~, o~ = W x_t + R h_{t-1}
    + b; R has one block per head, so that units read the units of their head only
    m_t = max(log f'_t + m_{t-1}, i~_t), at an episode's start i~_t     stabiliser
    f*_t = exp(log f'_t + m_{t-1} - m_t), i*_t = exp(i~_t - m_t)
    c_t = f*_t c_{t-1} + i*_t z_t, n_t = f*_t n_{t-1} + i*_t
    h_t = o_t c_t / n_t
    Outputs do not depend on m, so it needs no gradient. n is 0 at an episode's start, then >= 1.
    State (c, n, m, h), each [B, H] in float32 at least. The paper's block adds a convolution, a
    norm of each head and a gated MLP around it; here heads of the network follow, as for LSTM.
    Initialisation: biases of f evenly spread over [0, ``forget_bias``] in each head, R uniform as
    in nn.LSTM, W and other biases as in nn.Linear.
    Source: Beck et al. 2024, "xLSTM: Extended Long Short-Term Memory", equations 8-17 and appendix
    A.
    """

    def __init__(self, config: MemoryConfig, features: int) -> None:
        assert isinstance(config, SLSTMConfig)
        super().__init__(config, features)
        self.heads, d = config.heads, config.hidden // config.heads
        self.input = nn.Linear(features, 4 * config.hidden)  # z, i, f, o
        self.hidden = nn.Parameter(torch.empty(self.heads, d, 4 * d).uniform_(-(d**-0.5), d**-0.5))
        with torch.no_grad():
            bias = torch.linspace(0, config.forget_bias, d).repeat(self.heads)
            self.input.bias[2 * config.hidden : 3 * config.hidden] = bias

    def initial_state(self, batch: int, device: torch.device) -> Tree:
        return tuple(torch.zeros(batch, self.size, device=device) for _ in range(4))

    def inputs(self, x: Tensor) -> Tensor:
        out: Tensor = self.input(x)
        return out

    def row(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        c, n, m, h = state
        by_head = h.unflatten(-1, (self.heads, 1, -1))  # no len(h), which ONNX would hold fixed
        recurrent = (by_head @ self.hidden).squeeze(-2).unflatten(-1, (4, -1))
        gates = at_least_float32(x + recurrent.movedim(2, 1).flatten(1))
        z, write, forget, o = gates.chunk(4, -1)
        kept = torch.where(n == 0, write, F.logsigmoid(forget) + m)  # else it may be infinite
        m = torch.maximum(kept, write).detach()
        keep, write = torch.exp(kept - m), torch.exp(write - m)
        c, n = keep * c + write * torch.tanh(z), keep * n + write
        h = torch.sigmoid(o) * c / n
        return h, (c, n, m, h)
