"""sLSTM: an LSTM with exponential gates and heads."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.nets.memory.cell import RowCell, at_least_float32
from rlrun.schema import MemoryConfig, SLSTMConfig
from rlrun.types import Tree


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
