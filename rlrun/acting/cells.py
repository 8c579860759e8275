"""One step of the recurrent memories in numpy, on copies of their weights."""

from collections.abc import Iterable

import numpy as np
from torch import Tensor

from rlrun.acting.mlp import copy_parameter
from rlrun.nets.memory import Memory
from rlrun.nets.memory.lstm_gru import GRU, LSTM
from rlrun.nets.memory.mingru import MinGRU
from rlrun.types import Tree


class LSTMCell:
    """torch.lstm_cell; one product for inputs and state, one tanh for all gates.

    sigmoid(x) = tanh(x / 2) / 2 + 1/2: weights of the gates i, f, o are halved in advance. The
    order of gates is i, f, o, g (torch: i, f, g, o).
    """

    def __init__(self, memory: LSTM, num_envs: int) -> None:
        self.core, self.size = memory.core, memory.size
        features = self.core.input_size
        self.weight = np.empty((4 * self.size, features + self.size), np.float32)
        self.bias = np.empty(4 * self.size, np.float32)
        self.joined = np.empty((num_envs, features + self.size), np.float32)
        self.refresh()

    def refresh(self) -> None:
        w_x, w_h, b_x, b_h = (p.detach().numpy() for p in self.core.all_weights[0])
        h, features = self.size, self.core.input_size
        own_rows = (slice(0, 2 * h), slice(2 * h, 3 * h), slice(3 * h, 4 * h))
        torch_rows = (slice(0, 2 * h), slice(3 * h, 4 * h), slice(2 * h, 3 * h))
        for own, source in zip(own_rows, torch_rows, strict=True):
            self.weight[own, :features], self.weight[own, features:] = w_x[source], w_h[source]
            self.bias[own] = b_x[source] + b_h[source]
        self.weight[: 3 * h] *= 0.5
        self.bias[: 3 * h] *= 0.5

    def initial_state(self, num_envs: int) -> Tree:
        return tuple(np.zeros((num_envs, self.size), np.float32) for _ in range(2))

    def __call__(self, x: np.ndarray, state: Tree) -> tuple[np.ndarray, Tree]:
        size, joined = self.size, self.joined
        joined[:, : x.shape[1]], joined[:, x.shape[1] :] = x, state[0]
        gates = joined @ self.weight.T
        gates += self.bias
        np.tanh(gates, out=gates)
        sigmoids = gates[:, : 3 * size]
        sigmoids *= np.float32(0.5)
        sigmoids += np.float32(0.5)
        c = gates[:, size : 2 * size] * state[1]
        c += gates[:, :size] * gates[:, 3 * size :]
        h = np.tanh(c)
        h *= gates[:, 2 * size : 3 * size]
        return h, (h, c)


class _CopiedCell:
    """Copies of a core's parameters; the state is one array [B, H]."""

    def __init__(self, parameters: Iterable[Tensor], size: int) -> None:
        self.sources, self.size = list(parameters), size
        self.weights = [copy_parameter(p) for p in self.sources]

    def refresh(self) -> None:
        for own, source in zip(self.weights, self.sources, strict=True):
            np.copyto(own, source.detach().numpy())

    def initial_state(self, num_envs: int) -> Tree:
        return (np.zeros((num_envs, self.size), np.float32),)


class GRUCell(_CopiedCell):
    """torch.gru_cell."""

    def __init__(self, memory: GRU) -> None:
        super().__init__(memory.core.all_weights[0], memory.size)

    def __call__(self, x: np.ndarray, state: Tree) -> tuple[np.ndarray, Tree]:
        (h,), size = state, self.size
        w_x, w_h, b_x, b_h = self.weights
        a, b = x @ w_x.T + b_x, h @ w_h.T + b_h
        gates = a[:, : 2 * size] + b[:, : 2 * size]  # r, z
        gates = np.tanh(gates * np.float32(0.5)) * np.float32(0.5) + np.float32(0.5)
        r, z = gates[:, :size], gates[:, size:]
        candidate = np.tanh(a[:, 2 * size :] + r * b[:, 2 * size :])
        h = candidate + z * (h - candidate)
        return h, (h,)


class MinGRUCell(_CopiedCell):
    """``MinGRU.step``."""

    def __init__(self, memory: MinGRU) -> None:
        super().__init__((memory.core.weight, memory.core.bias), memory.size)

    def __call__(self, x: np.ndarray, state: Tree) -> tuple[np.ndarray, Tree]:
        weight, bias = self.weights
        out = x @ weight.T
        out += bias
        keep, candidate = out[:, : self.size], out[:, self.size :]
        keep = np.tanh(keep * np.float32(0.5)) * np.float32(0.5) + np.float32(0.5)
        h = candidate + keep * (state[0] - candidate)
        return h, (h,)


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
