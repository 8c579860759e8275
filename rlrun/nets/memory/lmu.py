"""LMU: a nonlinear state beside a linear memory of Legendre coefficients of the past."""

import torch
from torch import Tensor, nn

from rlrun.nets.memory.complex_cell import at_least_float32
from rlrun.nets.memory.custom import Cell
from rlrun.schema import LMUConfig, MemoryConfig
from rlrun.types import Tree


class LMU(Cell):
    """Legendre memory unit with k channels of order q over the last ``theta`` rows.

    u_t = E_x x_t + E_h h_{t-1} + E_m m_{t-1}  [k]
    m_t = A m_{t-1} + B u_t                    [q] of each channel
    h_t = tanh(W_x x_t + W_h h_{t-1} + W_m m_t)
    A, B discretise theta m' = A m + B u by zero-order hold with a step of one row, where A_ij =
    (2 i + 1) (-1 if i < j else (-1)^(i-j+1)), B_i = (2 i + 1) (-1)^i. They are constants. State
    (h [B, H], m [B, k q]), m and its sums in float32 at least. u reads h, so that the rows are
    computed one after the other; the products with x are those of all rows at once. The paper has
    k = 1.
    Initialisation: E_x, E_h uniform (LeCun), E_m zero, W normal (Xavier), no biases.
    Source: Voelker et al. 2019, equations 1-7 and section 3.
    """

    a: Tensor
    b: Tensor

    def __init__(self, config: MemoryConfig, features: int) -> None:
        assert isinstance(config, LMUConfig)
        super().__init__(config, features)
        h, self.channels, self.order = config.hidden, config.channels, config.order
        past = h + self.channels * self.order
        self.input = nn.Linear(features, self.channels + h, bias=False)  # E_x, W_x
        self.encode = nn.Linear(past, self.channels, bias=False)  # E_h, E_m
        self.hidden = nn.Linear(past, h, bias=False)  # W_h, W_m
        a, b = legendre(config.order, config.theta)
        self.register_buffer("a", a.float(), persistent=False)
        self.register_buffer("b", b.float(), persistent=False)
        with torch.no_grad():
            k = self.channels
            for weight in (self.input.weight[:k], self.encode.weight[:, :h]):
                bound = (3 / weight.shape[1]) ** 0.5
                weight.uniform_(-bound, bound)
            self.encode.weight[:, h:] = 0
            for weight in (self.input.weight[k:], self.hidden.weight[:, :h],
                           self.hidden.weight[:, h:]):  # fmt: skip
                weight.normal_(0, (2 / sum(weight.shape)) ** 0.5)

    def initial_state(self, batch: int, device: torch.device) -> Tree:
        m = torch.zeros(batch, self.channels * self.order, device=device)
        return (torch.zeros(batch, self.size, device=device), m)

    def step(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        return self._row(self.input(x), state)

    def unroll(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Return outputs [T, B, H] of ``x`` [T, B, F], and the state after row T-1."""
        out = []
        for row in self.input(x):
            h, state = self._row(row, state)
            out.append(h)
        return torch.stack(out), state

    def _row(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        h, m = state
        k = self.channels
        u = x[..., :k] + self.encode(torch.cat((h, m), -1))
        with torch.autocast(x.device.type, enabled=False):
            u = at_least_float32(u).unsqueeze(-1)
            m = at_least_float32(m).reshape(-1, k, self.order)
            m = (m @ self.a.T + u * self.b).flatten(-2)
        h = torch.tanh(x[..., k:] + self.hidden(torch.cat((h, m), -1)))
        return h, (h, m)


def legendre(order: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return (A [q, q], B [q]) in float64, discretised by zero-order hold; see ``LMU``."""
    i = torch.arange(order, dtype=torch.float64)
    scale, sign = (2 * i + 1) / theta, (-1.0) ** i
    below = -sign.unsqueeze(-1) * sign  # (-1)^(i-j+1)
    a = scale.unsqueeze(-1) * torch.where(i.unsqueeze(-1) < i, -1.0, below)
    both = torch.zeros(order + 1, order + 1, dtype=torch.float64)
    both[:order, :order], both[:order, order] = a, scale * sign
    held = torch.linalg.matrix_exp(both)  # of [[A, B], [0, 0]]: [[e^A, A^-1 (e^A - 1) B], [0, 1]]
    return held[:order, :order], held[:order, order]
