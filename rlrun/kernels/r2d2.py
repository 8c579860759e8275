"""R2D2's update with an MLP torso, an LSTM and linear heads: numpy products and compiled loops.

Most of an update of 32 windows through 32 units in torch is the overhead of some two hundred small
operations. Numbers agree with ``R2D2.loss`` to 1e-5.
"""

import time
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from rlrun.functional.rows import RAW_REWARD
from rlrun.jit import jit_ieee
from rlrun.kernels.layers import HALF, ONE, ZERO, sgemm, tanh
from rlrun.kernels.mlp import DifferentiableMLP, as_metrics, flat_gradients
from rlrun.kernels.nstep import clamp, or_else, rescale, unrescale
from rlrun.nets.memory.gated import LSTM
from rlrun.nets.qnet import QNet
from rlrun.nets.torso import MLP
from rlrun.policy.base import Gradients
from rlrun.policy.optim import IGNORE_OVERFLOW
from rlrun.policy.r2d2 import R2D2
from rlrun.types import Sample, Segment


@jit_ieee
def _step(
    gates: np.ndarray, product: np.ndarray, bias: np.ndarray, cell: np.ndarray,
    next_cell: np.ndarray, squashed: np.ndarray, hidden: np.ndarray,
) -> None:  # fmt: skip
    """Compute one row of B sequences: gates i, f, g, o [B, 4H] from sums to activations, in place.

    ``product`` [B, 4H]: the state's. Writes c_t, tanh(c_t) and h_t = o tanh(c_t), [B, H] each.
    """
    batch, units = cell.shape
    for b in range(batch):
        row, more = gates[b], product[b]
        for j in range(4 * units):
            row[j] += more[j] + bias[j]
        for j in range(2 * units):
            row[j] = tanh(row[j] * HALF) * HALF + HALF
        candidate = row[2 * units : 3 * units]
        for j in range(units):
            candidate[j] = tanh(candidate[j])
        output = row[3 * units :]
        for j in range(units):
            output[j] = tanh(output[j] * HALF) * HALF + HALF
        before, after = cell[b], next_cell[b]
        for j in range(units):
            after[j] = row[units + j] * before[j] + row[j] * row[2 * units + j]
        end, h = squashed[b], hidden[b]
        for j in range(units):
            end[j] = tanh(after[j])
        for j in range(units):
            h[j] = row[3 * units + j] * end[j]


@jit_ieee
def _step_backward(
    gates: np.ndarray, cell: np.ndarray, squashed: np.ndarray, hidden_grad: np.ndarray,
    later_grad: np.ndarray, cell_grad: np.ndarray,
) -> None:  # fmt: skip
    """Overwrite a row's gates [B, 4H] with the gradients of their sums.

    ``hidden_grad`` and ``later_grad`` [B, H]: d loss / d h_t from the outputs and from row t + 1.
    ``cell_grad`` [B, H], in place: d loss / d c_t from row t + 1, then d loss / d c_{t-1}.
    """
    batch, units = cell.shape
    for b in range(batch):
        row, before, end = gates[b], cell[b], squashed[b]
        up, later, carried = hidden_grad[b], later_grad[b], cell_grad[b]
        for j in range(units):
            o, y = row[3 * units + j], end[j]
            grad = up[j] + later[j]
            carried[j] += grad * o * (ONE - y * y)
            row[3 * units + j] = grad * y * o * (ONE - o)
        for j in range(units):
            i, f, g, grad = row[j], row[units + j], row[2 * units + j], carried[j]
            row[j] = grad * g * i * (ONE - i)
            row[units + j] = grad * before[j] * f * (ONE - f)
            row[2 * units + j] = grad * i * (ONE - g * g)
            carried[j] = grad * f


@jit_ieee
def _unroll(
    gates: np.ndarray, weight: np.ndarray, bias: np.ndarray, hidden: np.ndarray, cell: np.ndarray,
    squashed: np.ndarray, own: np.ndarray,
) -> None:  # fmt: skip
    """Compute all rows of B sequences; see ``Trace``.

    ``gates`` [T, B, 4H]: the inputs' products, replaced by activations. ``weight`` [4H, H]: of the
    state. ``hidden`` and ``cell``: row 0 is the start state. ``own`` bool [T, B]: sequences whose
    state changes in a row; of no rows: all change.
    """
    rows, batch, width = gates.shape
    units = width // 4
    product = np.empty((batch, width), np.float32)
    for t in range(rows):
        sgemm(
            101, 111, 112, batch, width, units, ONE, hidden[t].ctypes.data, units,
            weight.ctypes.data, units, np.float32(0), product.ctypes.data, width,
        )  # fmt: skip
        _step(gates[t], product, bias, cell[t], cell[t + 1], squashed[t], hidden[t + 1])
        if len(own):
            for b in range(batch):
                if not own[t, b]:
                    for j in range(units):
                        hidden[t + 1, b, j], cell[t + 1, b, j] = hidden[t, b, j], cell[t, b, j]


@jit_ieee
def _unroll_backward(
    gates: np.ndarray, weight: np.ndarray, cell: np.ndarray, squashed: np.ndarray, grad: np.ndarray
) -> None:
    """Overwrite the ``gates`` [T, B, 4H] of an unroll with the gradients of their sums.

    ``grad`` [T, B, H]: d loss / d h_t from the outputs.
    """
    rows, batch, width = gates.shape
    units = width // 4
    later, carried = np.zeros((batch, units), np.float32), np.zeros((batch, units), np.float32)
    for t in range(rows - 1, -1, -1):
        _step_backward(gates[t], cell[t], squashed[t], grad[t], later, carried)
        sgemm(
            101, 111, 111, batch, units, width, ONE, gates[t].ctypes.data, width,
            weight.ctypes.data, units, np.float32(0), later.ctypes.data, units,
        )  # fmt: skip


State = tuple[np.ndarray, np.ndarray]  # h and c, [B, H] each


class Trace(NamedTuple):
    """Arrays of an unroll of T rows that its backward pass reads."""

    inputs: np.ndarray  # [T, B, F]
    gates: np.ndarray  # [T, B, 4H] activated
    hidden: np.ndarray  # [T + 1, B, H] from the start state on
    cell: np.ndarray  # [T + 1, B, H]
    squashed: np.ndarray  # [T, B, H] tanh of cell[1:]


class NumpyLSTM:
    """Passes of an ``nn.LSTM`` of one layer. Weights are views of the module's."""

    def __init__(self, lstm: nn.LSTM, grads: dict[int, np.ndarray] | None = None) -> None:
        """``grads``: data_ptr of a parameter -> array for its gradient; None: forward only."""
        parameters = [p.detach() for p in lstm.all_weights[0]]
        self.of_inputs, self.of_hidden, *self.biases = (p.numpy() for p in parameters)
        self.grads = None if grads is None else [grads[p.data_ptr()] for p in parameters]
        self.ones = np.ones(0, np.float32)

    def unroll(self, x: np.ndarray, state: State, own: np.ndarray | None = None) -> Trace:
        """Unroll ``x`` [T, B, F] from ``state``, (h, c) of [B, H] each.

        ``own`` bool [T, B]: rows where it is False leave the state of their sequence unchanged.
        """
        (rows, batch, features), units = x.shape, self.of_hidden.shape[1]
        gates = x.reshape(-1, features) @ self.of_inputs.T
        gates = gates.reshape(rows, batch, 4 * units)
        hidden, cell = (np.empty((rows + 1, batch, units), np.float32) for _ in range(2))
        squashed = np.empty((rows, batch, units), np.float32)
        hidden[0], cell[0] = state
        own = np.ones((0, batch), bool) if own is None else own
        bias = self.biases[0] + self.biases[1]
        _unroll(gates, self.of_hidden, bias, hidden, cell, squashed, own)
        return Trace(x, gates, hidden, cell, squashed)

    def backward(self, trace: Trace, grad: np.ndarray, *, inputs: int) -> np.ndarray:
        """Write the gradients of the weights. Return those of the first columns of the inputs.

        ``grad`` [T', B, H]: d loss / d h_t of the first T' rows, the only ones on which the loss
        depends. ``inputs``: number of columns F' of the result [T' B, F']. Overwrites the trace.
        """
        assert self.grads is not None, "made without arrays for gradients"
        rows, batch, units = grad.shape
        gates = trace.gates[:rows]
        _unroll_backward(gates, self.of_hidden, trace.cell, trace.squashed, grad)
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


class NumpyHeads:
    """Passes of the heads of a ``QNet``. Weights are views of the network's."""

    def __init__(self, net: QNet, grads: dict[int, np.ndarray] | None) -> None:
        """``grads``: data_ptr of a parameter -> array for its gradient; None: forward only."""
        assert isinstance(net.advantage, nn.Sequential)
        self.advantage, self.value = DifferentiableMLP(net.advantage, grads), None
        if isinstance(net.value, nn.Sequential):
            self.value = DifferentiableMLP(net.value, grads)

    def __call__(self, h: np.ndarray) -> np.ndarray:
        """Return action values [N, A] of features [N, H]."""
        q = self.advantage(h)
        if self.value is not None:
            q -= q.mean(1, keepdims=True)
            q += self.value(h)
        return q

    def backward(self, grad: np.ndarray, *, inputs: bool) -> np.ndarray:
        """Write the gradients of the parameters. Return those of the features if ``inputs``.

        ``grad`` [n, A]: d loss / d q of the first n rows of the last call.
        """
        if self.value is None:
            return self.advantage.backward(grad, inputs=inputs)
        total = grad.sum(1, keepdims=True)
        of_value = self.value.backward(total, inputs=inputs)
        centred = grad - total / np.float32(grad.shape[1])
        of_value += self.advantage.backward(centred, inputs=inputs)
        return of_value


class NumpyRecurrentQNet:
    """Passes of a ``QNet`` with an LSTM. Weights are views of the network's."""

    def __init__(self, net: QNet, grads: dict[int, np.ndarray] | None = None) -> None:
        """``grads``: data_ptr of a parameter -> array for its gradient; None: forward only."""
        assert isinstance(net.torso, MLP)
        assert isinstance(net.memory, LSTM)
        self.torso = DifferentiableMLP(net.torso.layers, grads)
        self.width = net.torso.size
        self.lstm = NumpyLSTM(net.memory.core, grads)
        self.heads = NumpyHeads(net, grads)
        self.trace: Trace | None = None

    def unroll(self, obs: np.ndarray, previous: np.ndarray, state: State) -> np.ndarray:
        """Return Q [T, B, A] of ``obs`` [T, B, F] and ``previous`` [T, B, P]; see ``QNet``."""
        self.trace = self.lstm.unroll(self.inputs(obs, previous), state)
        h = self.trace.hidden[1:]
        return self.heads(h.reshape(-1, h.shape[-1])).reshape(*obs.shape[:2], -1)

    def warm(self, obs: np.ndarray, previous: np.ndarray, state: State, own: np.ndarray) -> State:
        """Return the state after the burn-in; ``own`` bool [T, B]: the rows that are not filler."""
        if not len(obs):
            return state
        trace = self.lstm.unroll(self.inputs(obs, previous), state, own)
        return trace.hidden[-1], trace.cell[-1]

    def inputs(self, obs: np.ndarray, previous: np.ndarray) -> np.ndarray:
        """Return the inputs [T, B, *] of the memory."""
        features = self.torso(obs.reshape(-1, obs.shape[-1])).reshape(*obs.shape[:2], -1)
        return np.concatenate((features, previous), -1) if previous.shape[-1] else features

    def backward(self, grad: np.ndarray) -> None:
        """Write the gradients of the parameters.

        ``grad`` [T', B, A]: d loss / d Q of the first T' rows of the last ``unroll``, the only ones
        on which the loss depends.
        """
        assert self.trace is not None, "unroll first"
        rows, batch, actions = grad.shape
        h = self.heads.backward(grad.reshape(-1, actions), inputs=True)
        deep = bool(self.torso.layers)
        h = self.lstm.backward(
            self.trace, h.reshape(rows, batch, -1), inputs=self.width if deep else 0
        )
        if deep:
            self.torso.backward(h, inputs=False)


class R2D2Kernel:
    """The gradients of R2D2 for scalar action values, an MLP torso and an LSTM."""

    def __init__(self, policy: R2D2) -> None:
        self.policy, self.config, self.window = policy, policy.config, policy.window
        grads = flat_gradients(policy.parts["net"].adam)
        self.online = NumpyRecurrentQNet(policy.net, grads)
        self.target = NumpyRecurrentQNet(policy.target)
        assert isinstance(policy.net.torso, MLP)
        self.flatten = policy.net.torso.flatten
        c = self.config
        self.reward_scale = np.float32(c.reward_scale)
        self.reward_clip, self.td_clip = or_else(c.reward_clip, np.inf), or_else(c.td_clip, np.inf)
        self.rescale_eps = or_else(c.value_rescale_eps, -1)
        self.powers = np.float32(c.gamma) ** np.arange(c.nstep + 1, dtype=np.float32)

    @torch.no_grad()
    def gradients(self, sample: Sample) -> Gradients:
        """Return the gradients of ``R2D2.loss``, priorities and metrics."""
        policy, segment, weight = self.policy, sample.segment, sample.weight.numpy()
        bs, learned = self.window.burnin, self.window.learned
        obs, previous = self.inputs(segment)
        valid, state = segment.valid.numpy(), self.start_state(segment)

        @IGNORE_OVERFLOW  # also in other threads, to which that of ``update`` does not apply
        def unroll(net: NumpyRecurrentQNet) -> np.ndarray:
            warm = net.warm(obs[:bs], previous[:bs], state, valid[:bs])
            return net.unroll(obs[bs:], previous[bs:], warm)

        target_unroll = policy.compute.run_in_thread(lambda: unroll(self.target))
        q = unroll(self.online)
        q_target = target_unroll()
        terminated, truncated = segment.terminated.numpy()[bs:], segment.truncated.numpy()[bs:]
        grad = np.zeros((learned, *q.shape[1:]), np.float32)
        priority = np.empty(len(weight), np.float32)
        loss, td_abs, q_taken, mean_target, valid_fraction = _td_errors(
            q, q_target, segment.action.numpy()[bs:], segment.reward.numpy()[bs:],
            terminated, truncated, valid[bs:], weight, self.reward_scale, self.reward_clip,
            self.powers, self.config.double, self.rescale_eps, self.td_clip,
            np.float32(self.config.priority_eta), grad, priority,
        )  # fmt: skip

        began = time.perf_counter()
        self.online.backward(grad)
        seconds = time.perf_counter() - began
        metrics = as_metrics(
            loss=loss, td_abs=td_abs, q_taken=q_taken, target=mean_target,
            valid_fraction=valid_fraction,
        )  # fmt: skip
        return Gradients({"net": None}, torch.from_numpy(priority), metrics, seconds)

    def inputs(self, segment: Segment) -> tuple[np.ndarray, np.ndarray]:
        """Return flat observations [S, B, F] and previous action and reward [S, B, P].

        Equal to ``functional.rows.network_inputs`` and ``QNet.encode_previous``: zero in rows that
        are not readable or have no row before them. P = 0 without ``prev_inputs``.
        """
        obs = self.flatten(segment.obs).numpy()
        size = self.policy.net.actions + 1 if self.config.prev_inputs else 0
        x, previous = np.zeros_like(obs), np.zeros((*obs.shape[:2], size), np.float32)
        acted_on = segment.extras.get(RAW_REWARD, segment.reward)
        prev_action, prev_reward = segment.extras["prev_action"], segment.extras["prev_reward"]
        _network_inputs(
            obs, segment.action.numpy(), acted_on.numpy(), segment.first.numpy(),
            segment.terminated.numpy(), segment.valid.numpy(), prev_action.numpy(),
            prev_reward.numpy(), self.reward_scale, self.reward_clip, x, previous,
        )  # fmt: skip
        return x, previous

    def start_state(self, segment: Segment) -> State:
        """Return (h, c) [B, H] from which windows start."""
        h, c = self.policy.start_state(segment)
        return h.numpy(), c.numpy()


@jit_ieee
def _network_inputs(
    obs: np.ndarray, action: np.ndarray, reward: np.ndarray, first: np.ndarray,
    terminated: np.ndarray, valid: np.ndarray, prev_action: np.ndarray, prev_reward: np.ndarray,
    scale: np.float32, clip: np.float32, x: np.ndarray, previous: np.ndarray,
) -> None:  # fmt: skip
    """Fill the zero arrays ``x`` and ``previous`` where rows are readable."""
    steps, batch = valid.shape
    actions = previous.shape[2] - 1
    for t in range(steps + 1):
        for b in range(batch):
            after_valid = t > 0 and valid[t - 1, b]
            is_valid = t < steps and valid[t, b]
            if not (is_valid or (after_valid and not terminated[t - 1, b])):
                continue
            for j in range(x.shape[2]):
                x[t, b, j] = obs[t, b, j]
            if actions < 0 or first[t, b]:
                continue
            own_first = is_valid and not after_valid
            chosen, earned = prev_action[b], prev_reward[b]
            if t > 0 and not own_first:
                chosen, earned = action[t - 1, b], reward[t - 1, b]
            if 0 <= chosen < actions:
                previous[t, b, chosen] = ONE
            previous[t, b, actions] = clamp(earned * scale, clip)


@jit_ieee
def _td_errors(
    q: np.ndarray, q_target: np.ndarray, action: np.ndarray, reward: np.ndarray,
    terminated: np.ndarray, truncated: np.ndarray, valid: np.ndarray, weight: np.ndarray,
    scale: np.float32, clip: np.float32, powers: np.ndarray, double: bool, eps: np.float32,
    td_clip: np.float32, eta: np.float32, grad: np.ndarray, priority: np.ndarray,
) -> tuple[float, float, float, float, float]:  # fmt: skip
    """Fill the priorities [B] and ``grad`` [L, B, A] (zeros), d loss / d q of the learned rows.

    All arrays begin after the burn-in. ``powers``: gamma^0 .. gamma^n. ``eps``: of h; negative: no
    rescaling. Returns the loss, the means of |delta|, Q and target over valid rows, and their
    share.
    """
    rows, batch, _ = grad.shape
    loss = sizes = predictions = targets = 0.0
    count = 0
    for b in range(batch):
        largest, total, own = ZERO, 0.0, 0
        for t in range(rows):
            if not valid[t, b]:
                continue
            target, k, dead = ZERO, 0, False
            while k < len(powers) - 1 and t + k < len(valid) and valid[t + k, b]:
                row = t + k
                target += powers[k] * clamp(reward[row, b] * scale, clip)
                k += 1
                if terminated[row, b] or truncated[row, b]:
                    dead = terminated[row, b]
                    break
            if not dead:
                choosing = q[t + k, b] if double else q_target[t + k, b]
                value = q_target[t + k, b, np.argmax(choosing)]
                target += powers[k] * (value if eps < ZERO else unrescale(value, eps))
            if eps >= ZERO:
                target = rescale(target, eps)
            prediction = q[t, b, action[t, b]]
            delta = target - prediction
            clipped = clamp(delta, td_clip)
            grad[t, b, action[t, b]] = -clipped * weight[b] / np.float32(rows * batch)
            loss += float(weight[b] * clipped * (delta - HALF * clipped))
            largest = max(largest, abs(delta))
            total += float(abs(delta))
            predictions += float(prediction)
            targets += float(target)
            own += 1
        priority[b] = eta * largest + (ONE - eta) * np.float32(total / max(own, 1))
        sizes += total
        count += own
    some = max(count, 1)
    return (
        loss / (rows * batch), sizes / some, predictions / some, targets / some,
        count / (rows * batch),
    )  # fmt: skip
