"""One step of the recurrent memories in numpy, with weights of their own."""

import numpy as np

from rlrun.kernels.mlp import copy_parameter
from rlrun.nets.memory.mingru import MinGRU
from rlrun.nets.memory.recurrent import GRU, LSTM
from rlrun.types import Tree


class LSTMCell:
    """torch.lstm_cell; one product for inputs and state, one tanh for all gates.

    sigmoid(x) = tanh(x / 2) / 2 + 1/2: the rows of the gates i, f, o are halved beforehand. They
    stand before those of g here.
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
        places = (slice(0, 2 * h), slice(2 * h, 3 * h), slice(3 * h, 4 * h))
        sources = (slice(0, 2 * h), slice(3 * h, 4 * h), slice(2 * h, 3 * h))  # torch: i, f, g, o
        for to, of in zip(places, sources, strict=True):
            self.weight[to, :features], self.weight[to, features:] = w_x[of], w_h[of]
            self.bias[to] = b_x[of] + b_h[of]
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
        opened = gates[:, : 3 * size]
        opened *= np.float32(0.5)
        opened += np.float32(0.5)
        c = gates[:, size : 2 * size] * state[1]
        c += gates[:, :size] * gates[:, 3 * size :]
        h = np.tanh(c)
        h *= gates[:, 2 * size : 3 * size]
        return h, (h, c)


class GRUCell:
    """torch.gru_cell."""

    def __init__(self, memory: GRU) -> None:
        self.core, self.size = memory.core, memory.size
        self.weights = [copy_parameter(p) for p in self.core.all_weights[0]]

    def refresh(self) -> None:
        for own, p in zip(self.weights, self.core.all_weights[0], strict=True):
            np.copyto(own, p.detach().numpy())

    def initial_state(self, num_envs: int) -> Tree:
        return (np.zeros((num_envs, self.size), np.float32),)

    def __call__(self, x: np.ndarray, state: Tree) -> tuple[np.ndarray, Tree]:
        (h,), size = state, self.size
        w_x, w_h, b_x, b_h = self.weights
        a, b = x @ w_x.T + b_x, h @ w_h.T + b_h
        opened = a[:, : 2 * size] + b[:, : 2 * size]  # r, z
        opened = np.tanh(opened * np.float32(0.5)) * np.float32(0.5) + np.float32(0.5)
        r, z = opened[:, :size], opened[:, size:]
        new = np.tanh(a[:, 2 * size :] + r * b[:, 2 * size :])
        h = new + z * (h - new)
        return h, (h,)


class MinGRUCell:
    """One step of a ``MinGRU`` in numpy, with weights of its own."""

    def __init__(self, memory: MinGRU) -> None:
        self.core, self.size = memory.core, memory.size
        self.weight, self.bias = (p.detach().numpy().copy() for p in self.core.parameters())

    def refresh(self) -> None:
        np.copyto(self.weight, self.core.weight.detach().numpy())
        np.copyto(self.bias, self.core.bias.detach().numpy())

    def initial_state(self, num_envs: int) -> Tree:
        return (np.zeros((num_envs, self.size), np.float32),)

    def __call__(self, x: np.ndarray, state: Tree) -> tuple[np.ndarray, Tree]:
        both = x @ self.weight.T
        both += self.bias
        keep, candidate = both[:, : self.size], both[:, self.size :]
        keep = np.tanh(keep * np.float32(0.5)) * np.float32(0.5) + np.float32(0.5)
        h = candidate + keep * (state[0] - candidate)
        return h, (h,)
