"""An LSTM layer forward and backward: products by numpy, everything between them in compiled loops.

torch's LSTM spends half its time outside the products on a batch of some 32 sequences through 32
units. Here the inputs of all rows take one product, a row's step one product of the state and one
loop over the gates, and the gradients of the weights one product each.
"""

from typing import NamedTuple

import numpy as np
from torch import nn

from rlrun.jit import jit_ieee

# tanh(x) = x P(x^2) / Q(x^2) on [-8.5, 8.5], fitted; relative error 4e-7 in float32.
_END, _HALF, _ONE = np.float32(8.5), np.float32(0.5), np.float32(1)
_P1, _P2 = np.float32(1.341324895620346e-01), np.float32(3.5340290050953627e-03)
_P3, _P4 = np.float32(2.12510785786435e-05), np.float32(1.426927376257936e-08)
_Q1, _Q2 = np.float32(4.6746572852134705e-01), np.float32(2.6022758334875107e-02)
_Q3, _Q4 = np.float32(3.3488680492155254e-04), np.float32(8.145142373905401e-07)


@jit_ieee
def _tanh(x: np.float32) -> np.float32:
    """Elementwise, so that a loop over it is vectorised; within +-1; NaN stays NaN."""
    x = -_END if x < -_END else x
    x = _END if x > _END else x
    u = x * x
    p = (((_P4 * u + _P3) * u + _P2) * u + _P1) * u + _ONE
    q = (((_Q4 * u + _Q3) * u + _Q2) * u + _Q1) * u + _ONE
    y = x * p / q
    y = -_ONE if y < -_ONE else y
    return _ONE if y > _ONE else y


@jit_ieee
def _step(
    gates: np.ndarray, product: np.ndarray, bias: np.ndarray, cell: np.ndarray,
    next_cell: np.ndarray, squashed: np.ndarray, hidden: np.ndarray,
) -> None:  # fmt: skip
    """One row of B sequences: gates i, f, g, o [B, 4H] from sums to activations, in place.

    ``product`` [B, 4H] of the state. Writes c_t, tanh(c_t) and h_t = o tanh(c_t), [B, H] each.
    """
    batch, units = cell.shape
    for b in range(batch):
        row, more = gates[b], product[b]
        for j in range(4 * units):
            row[j] += more[j] + bias[j]
        for j in range(2 * units):
            row[j] = _tanh(row[j] * _HALF) * _HALF + _HALF
        candidate = row[2 * units : 3 * units]
        for j in range(units):
            candidate[j] = _tanh(candidate[j])
        output = row[3 * units :]
        for j in range(units):
            output[j] = _tanh(output[j] * _HALF) * _HALF + _HALF
        before, after = cell[b], next_cell[b]
        for j in range(units):
            after[j] = row[units + j] * before[j] + row[j] * row[2 * units + j]
        tanh, h = squashed[b], hidden[b]
        for j in range(units):
            tanh[j] = _tanh(after[j])
        for j in range(units):
            h[j] = row[3 * units + j] * tanh[j]


@jit_ieee
def _step_backward(
    gates: np.ndarray, cell: np.ndarray, squashed: np.ndarray, hidden_grad: np.ndarray,
    later_grad: np.ndarray, cell_grad: np.ndarray,
) -> None:  # fmt: skip
    """Overwrite a row's gates [B, 4H] with the gradients of their sums.

    ``hidden_grad`` and ``later_grad`` [B, H]: d loss / d h_t by the outputs and by row t + 1.
    ``cell_grad`` [B, H], in place: d loss / d c_t by row t + 1, then d loss / d c_{t-1}.
    """
    batch, units = cell.shape
    for b in range(batch):
        row, before, tanh = gates[b], cell[b], squashed[b]
        up, later, carried = hidden_grad[b], later_grad[b], cell_grad[b]
        for j in range(units):
            o, y = row[3 * units + j], tanh[j]
            grad = up[j] + later[j]
            carried[j] += grad * o * (_ONE - y * y)
            row[3 * units + j] = grad * y * o * (_ONE - o)
        for j in range(units):
            i, f, g, grad = row[j], row[units + j], row[2 * units + j], carried[j]
            row[j] = grad * g * i * (_ONE - i)
            row[units + j] = grad * before[j] * f * (_ONE - f)
            row[2 * units + j] = grad * i * (_ONE - g * g)
            carried[j] = grad * f


State = tuple[np.ndarray, np.ndarray]  # h and c, [B, H] each


class Trace(NamedTuple):
    """Arrays of an unroll of T rows that its backward pass reads."""

    inputs: np.ndarray  # [T, B, F]
    gates: np.ndarray  # [T, B, 4H] activated
    hidden: np.ndarray  # [T + 1, B, H] from the start state on
    cell: np.ndarray  # [T + 1, B, H]
    squashed: np.ndarray  # [T, B, H] tanh of cell[1:]


class NumpyLSTM:
    """Forward and backward passes of an ``nn.LSTM`` of one layer; weights are views of its own."""

    def __init__(self, lstm: nn.LSTM, grads: dict[int, np.ndarray] | None = None) -> None:
        """``grads``: data_ptr of a parameter -> array for its gradient; None: forward only."""
        parameters = [p.detach() for p in lstm.all_weights[0]]
        self.of_inputs, self.of_hidden, *self.biases = (p.numpy() for p in parameters)
        self.grads = None if grads is None else [grads[p.data_ptr()] for p in parameters]
        self.ones = np.ones(0, np.float32)

    def unroll(self, x: np.ndarray, state: State, own: np.ndarray | None = None) -> Trace:
        """Unroll ``x`` [T, B, F] from ``state``, (h, c) of [B, H] each.

        ``own`` bool [T, B]: rows that are not leave the state of their sequence as it is.
        """
        (rows, batch, features), units = x.shape, self.of_hidden.shape[1]
        gates = x.reshape(-1, features) @ self.of_inputs.T
        gates = gates.reshape(rows, batch, 4 * units)
        hidden, cell = (np.empty((rows + 1, batch, units), np.float32) for _ in range(2))
        squashed = np.empty((rows, batch, units), np.float32)
        product = np.empty((batch, 4 * units), np.float32)
        hidden[0], cell[0] = state
        weight, bias = self.of_hidden.T, self.biases[0] + self.biases[1]
        for t in range(rows):
            np.matmul(hidden[t], weight, out=product)
            _step(gates[t], product, bias, cell[t], cell[t + 1], squashed[t], hidden[t + 1])
            if own is not None and not own[t].all():
                for part in (hidden, cell):
                    np.copyto(part[t + 1], part[t], where=~own[t, :, None])
        return Trace(x, gates, hidden, cell, squashed)

    def backward(self, trace: Trace, grad: np.ndarray, *, inputs: int) -> np.ndarray:
        """Write the gradients of the weights; return those of the first columns of the inputs.

        ``grad`` [T', B, H]: d loss / d h_t of the first T' rows; the loss does not depend on the
        others. ``inputs``: number of columns F' of the result [T' B, F']. Overwrites the trace.
        """
        assert self.grads is not None, "made without arrays for gradients"
        rows, batch, units = grad.shape
        later, cell = np.zeros((batch, units), np.float32), np.zeros((batch, units), np.float32)
        gates, weight = trace.gates[:rows], self.of_hidden
        for t in reversed(range(rows)):
            _step_backward(gates[t], trace.cell[t], trace.squashed[t], grad[t], later, cell)
            np.matmul(gates[t], weight, out=later)
        flat = gates.reshape(rows * batch, 4 * units)
        if len(self.ones) != len(flat):
            self.ones = np.ones(len(flat), np.float32)
        of_inputs, of_hidden, *biases = self.grads
        np.matmul(flat.T, trace.inputs[:rows].reshape(len(flat), -1), out=of_inputs)
        np.matmul(flat.T, trace.hidden[:rows].reshape(len(flat), -1), out=of_hidden)
        np.matmul(self.ones, flat, out=biases[0])
        biases[1][...] = biases[0]
        of_x: np.ndarray = flat @ self.of_inputs[:, :inputs]
        return of_x
