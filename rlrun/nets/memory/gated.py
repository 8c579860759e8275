"""Memories with real states: LSTM, GRU, minGRU, LMU and none."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from rlrun.nets.memory.cell import Readout, RowCell, ScanCell, at_least_float32, make_readout
from rlrun.schema import LMUConfig, MemoryConfig, MinGRUConfig
from rlrun.types import Tree, tree_map

Unroll = Callable[[nn.Module, Tensor, Tree, Tensor | None], tuple[Tensor, Tree]]


class LSTM(nn.Module):
    """nn.LSTM; state (h, c), each [B, H]. The forget gate's bias starts at ``forget_bias``."""

    compiled: Unroll | None = None  # ``kernels.gated.unroll``, faster where the learner may use it

    def __init__(self, config: MemoryConfig, features: int) -> None:
        super().__init__()
        self.size = config.hidden
        self.core = nn.LSTM(features, config.hidden)
        with torch.no_grad():
            gate = slice(config.hidden, 2 * config.hidden)  # torch's gate order: i, f, g, o
            self.core.get_parameter("bias_ih_l0")[gate] = config.forget_bias
            self.core.get_parameter("bias_hh_l0")[gate] = 0.0

    def initial_state(self, batch: int, device: torch.device) -> Tree:
        zero = torch.zeros(batch, self.size, device=device)
        return (zero, zero.clone())

    def unroll(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Return outputs [T, B, H] of ``x`` [T, B, F], and the state after row T-1."""
        if self.compiled is not None:
            return self.compiled(self, x, state, None)
        h, c = (s.unsqueeze(0) for s in state)
        if x.is_cuda:
            x, weights = _aligned(x, self.core, 128 if _stays_on_chip(x, self.size) else 8)
            out, h, c = torch.lstm(x, (h, c), weights, *_ONE_LAYER)
        else:
            out, (h, c) = self.core(x, (h, c))
        return out, (h.squeeze(0), c.squeeze(0))

    def state_after(self, x: Tensor, lengths: Tensor, state: Tree) -> Tree:
        """Return the states [B, H] after the first ``lengths[b]`` rows of ``x`` [T, B, F]."""
        return _state_after(self, x, lengths, state)

    def step(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Return output [B, H] and state of one row [B, F], faster than ``unroll`` with T = 1."""
        h, c = torch.lstm_cell(x, state, *self.core.all_weights[0])
        return h, (h, c)


class GRU(nn.Module):
    """nn.GRU; state h [B, H]."""

    compiled: Unroll | None = None

    def __init__(self, config: MemoryConfig, features: int) -> None:
        super().__init__()
        self.size = config.hidden
        self.core = nn.GRU(features, config.hidden)

    def initial_state(self, batch: int, device: torch.device) -> Tree:
        return (torch.zeros(batch, self.size, device=device),)

    def unroll(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        if self.compiled is not None:
            return self.compiled(self, x, state, None)
        h = state[0].unsqueeze(0)
        if x.is_cuda:
            x, weights = _aligned(x, self.core)
            out, h = torch.gru(x, h, weights, *_ONE_LAYER)
        else:
            out, h = self.core(x, h)
        return out, (h.squeeze(0),)

    def state_after(self, x: Tensor, lengths: Tensor, state: Tree) -> Tree:
        return _state_after(self, x, lengths, state)

    def step(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        h = torch.gru_cell(x, state[0], *self.core.all_weights[0])
        return h, (h,)


_ONE_LAYER = (True, 1, 0.0, True, False, False)  # the arguments of torch.lstm behind the weights


def _stays_on_chip(x: Tensor, size: int) -> bool:
    """Return whether cuDNN should keep an LSTM's weights on the chip for all rows of ``x``.

    It can in float16, if features and units are multiples of 128: with 512 units and 80 rows
    forward and backward take 0.43 of the time for 16 windows and 0.56 for 32. For 64 the LSTM takes
    1.06 but an update of R2D2 0.94, for 128 the LSTM 1.5 (H200).
    """
    fits = 256 <= size <= 1024 and size % 128 == 0
    return fits and x.shape[1] <= 64 and torch.is_autocast_enabled("cuda")


def _aligned(x: Tensor, core: nn.LSTM | nn.GRU, to: int = 8) -> tuple[Tensor, list[Tensor]]:
    """Return inputs padded with zeros to a multiple of ``to`` features, and the weights for them.

    cuDNN multiplies widths that are no multiple of 8 without the fast paths of tensor cores. The
    weights lie in one array, else cuDNN copies them with a warning; autocast makes that array.
    """
    first, *rest = core.all_weights[0]
    pad = (0, -x.shape[-1] % to)
    weights = [F.pad(first, pad), *rest]
    if not torch.is_autocast_enabled("cuda"):
        flat = torch.cat([w.reshape(-1) for w in weights])
        parts = torch.split(flat, [w.numel() for w in weights])
        weights = [part.view_as(w) for part, w in zip(parts, weights, strict=True)]
    return F.pad(x, pad), weights


class NoMemory(nn.Module):
    """No memory: outputs equal inputs, and the state is empty."""

    def __init__(self, config: MemoryConfig, features: int) -> None:
        super().__init__()
        self.size = features

    def initial_state(self, batch: int, device: torch.device) -> Tree:
        return ()

    def unroll(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        return x, state

    def state_after(self, x: Tensor, lengths: Tensor, state: Tree) -> Tree:
        return state

    def step(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        return x, state


def _state_after(memory: LSTM | GRU, x: Tensor, lengths: Tensor, state: Tree) -> Tree:
    """Return the states after ``lengths[b]`` rows; synchronises with the device once."""
    nonempty = (lengths > 0).nonzero().squeeze(-1)
    if not len(nonempty):
        return state
    packed = pack_padded_sequence(x[:, nonempty], lengths[nonempty].cpu(), enforce_sorted=False)
    initial = tree_map(lambda s: s[nonempty].unsqueeze(0), state)
    _, last = memory.core(packed, initial if isinstance(memory, LSTM) else initial[0])
    last = last if isinstance(memory, LSTM) else (last,)
    return tree_map(lambda s, new: s.index_copy(0, nonempty, new.squeeze(0)), state, last)


class MinGRU(ScanCell):
    """minGRU: h_t = (1 - z_t) h_{t-1} + z_t c_t with z_t = sigmoid(W_z x_t), c_t = W_c x_t.

    Gate and candidate read only the input, never the state. The biases of the keep gates 1 - z
    start evenly spread over [0, ``forget_bias``], so the units' time scales range from 2 to 1 +
    e^forget_bias rows. State h [B, H]; outputs are its ``Readout`` (``memory.readout=false``: the
    state).

    Source: Feng et al. 2024, section 3.1; Tallec & Ollivier 2018 (the spread of time scales).
    """

    def __init__(self, config: MemoryConfig, features: int) -> None:
        assert isinstance(config, MinGRUConfig)
        super().__init__(config, features)
        self.shape = (config.hidden,)
        self.core = nn.Linear(features, 2 * config.hidden)  # keep gate, candidate
        with torch.no_grad():
            bias = torch.linspace(0, config.forget_bias, config.hidden)
            self.core.bias[: config.hidden] = bias
        self.readout: Readout | None = make_readout(self.size) if config.readout else None

    def read(self, s: Tensor, x: Tensor, *others: Tensor) -> Tensor:
        return s if self.readout is None else self.readout(s)

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gate, candidate = at_least_float32(self.core(x)).chunk(2, -1)
        return torch.sigmoid(gate), torch.sigmoid(-gate) * candidate


class LMU(RowCell):
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

    def inputs(self, x: Tensor) -> Tensor:
        out: Tensor = self.input(x)
        return out

    def row(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
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
    exp = torch.linalg.matrix_exp(both)  # of [[A, B], [0, 0]]: [[e^A, A^-1 (e^A - 1) B], [0, 1]]
    return exp[:order, :order], exp[:order, order]
