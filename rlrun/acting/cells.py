"""One step of the recurrent memories in numpy, on copies of their weights."""

from collections.abc import Iterable

import numpy as np
from torch import Tensor

from rlrun.acting.mlp import ForwardMLP, copy_parameter
from rlrun.nets.memory import Memory
from rlrun.nets.memory.lstm_gru import GRU, LSTM
from rlrun.nets.memory.mingru import MinGRU
from rlrun.types import Tree

HALF = np.float32(0.5)


class LSTMCell:
    """torch.lstm_cell; one product for inputs and state, one tanh for all gates.

    sigmoid(x) = tanh(x / 2) / 2 + 1/2: weights of the gates i, f, o are halved in advance. The
    order of gates is i, f, o, g (torch: i, f, g, o).
    """

    def __init__(self, memory: LSTM, num_envs: int) -> None:
        self.core, h, features = memory.core, memory.size, memory.core.input_size
        self.weight = np.empty((4 * h, features + h), np.float32)
        self.bias = np.empty(4 * h, np.float32)
        self.joined = np.empty((num_envs, features + h), np.float32)
        self.inputs, self.hidden = self.joined[:, :features], self.joined[:, features:]
        self.all_gates = np.empty((num_envs, 4 * h), np.float32)
        self.sigmoids = self.all_gates[:, : 3 * h]
        self.gates = np.split(self.all_gates, 4, 1)
        self.refresh()

    def refresh(self) -> None:
        w_x, w_h, b_x, b_h = (p.detach().numpy() for p in self.core.all_weights[0])
        weight, bias = np.concatenate([w_x, w_h], 1), b_x + b_h
        for own, source in zip((0, 1, 3, 2), range(4), strict=True):
            scale = np.float32(1 if own == 3 else 0.5)
            np.multiply(np.split(weight, 4)[source], scale, out=np.split(self.weight, 4)[own])
            np.multiply(np.split(bias, 4)[source], scale, out=np.split(self.bias, 4)[own])

    def __call__(self, x: np.ndarray, state: Tree) -> tuple[np.ndarray, Tree]:
        self.inputs[...], self.hidden[...] = x, state[0]
        np.matmul(self.joined, self.weight.T, out=self.all_gates)
        self.all_gates += self.bias
        np.tanh(self.all_gates, out=self.all_gates)
        self.sigmoids *= HALF
        self.sigmoids += HALF
        i, f, o, g = self.gates
        c = f * state[1]
        c += i * g
        h = np.tanh(c)
        h *= o
        return h, (h, c)


class _CopiedCell:
    """Copies of a core's parameters; the state is one array [B, H]."""

    def __init__(self, parameters: Iterable[Tensor], size: int) -> None:
        self.sources, self.size = list(parameters), size
        self.weights = [copy_parameter(p) for p in self.sources]

    def refresh(self) -> None:
        for own, source in zip(self.weights, self.sources, strict=True):
            np.copyto(own, source.detach().numpy())


class GRUCell(_CopiedCell):
    """torch.gru_cell."""

    def __init__(self, memory: GRU) -> None:
        super().__init__(memory.core.all_weights[0], memory.size)

    def __call__(self, x: np.ndarray, state: Tree) -> tuple[np.ndarray, Tree]:
        (h,), size = state, self.size
        w_x, w_h, b_x, b_h = self.weights
        a, b = x @ w_x.T + b_x, h @ w_h.T + b_h
        gates = a[:, : 2 * size] + b[:, : 2 * size]  # r, z
        gates = np.tanh(gates * HALF) * HALF + HALF
        r, z = gates[:, :size], gates[:, size:]
        candidate = np.tanh(a[:, 2 * size :] + r * b[:, 2 * size :])
        h = candidate + z * (h - candidate)
        return h, (h,)


class MinGRUCell(_CopiedCell):
    """``MinGRU.step``."""

    def __init__(self, memory: MinGRU) -> None:
        super().__init__((memory.core.weight, memory.core.bias), memory.size)
        self.readout = None if memory.readout is None else ForwardMLP(memory.readout)

    def refresh(self) -> None:
        super().refresh()
        if self.readout is not None:
            self.readout.refresh()

    def __call__(self, x: np.ndarray, state: Tree) -> tuple[np.ndarray, Tree]:
        weight, bias = self.weights
        out = x @ weight.T
        out += bias
        keep, candidate = out[:, : self.size], out[:, self.size :]
        keep = np.tanh(keep * HALF) * HALF + HALF
        h = candidate + keep * (state[0] - candidate)
        return (h if self.readout is None else self.readout(h)), (h,)


def make_cell(memory: Memory, num_envs: int) -> LSTMCell | GRUCell | MinGRUCell | None:
    """Return the cell of ``memory``, None for ``NoMemory``."""
    match memory:
        case LSTM():
            return LSTMCell(memory, num_envs)
        case GRU():
            return GRUCell(memory)
        case MinGRU():
            return MinGRUCell(memory)
    return None
