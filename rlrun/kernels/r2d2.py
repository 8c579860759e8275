"""R2D2's update with an MLP torso, an LSTM or GRU and linear heads: products and compiled loops.

Most of an update of 32 windows through 32 units in torch is the overhead of some two hundred small
operations. Numbers agree with ``R2D2.loss`` to 1e-5.
"""

from typing import Any

import numpy as np
import torch
from torch import nn

from rlrun.functional.rows import RAW_REWARD
from rlrun.jit import jit_ieee
from rlrun.kernels.gated import GatedPasses, State, Trace
from rlrun.kernels.layers import HALF, ONE, ZERO
from rlrun.kernels.mlp import DifferentiableMLP, flat_gradients
from rlrun.kernels.nstep import (
    TD_METRICS,
    clamp,
    or_else,
    rescale,
    reward_rule,
    rows_of,
    unrescale,
)
from rlrun.nets.memory.gated import GRU, LSTM
from rlrun.nets.qnet import QNet
from rlrun.nets.torso import MLP
from rlrun.policy.base import Gradients
from rlrun.policy.optim import IGNORE_OVERFLOW
from rlrun.policy.r2d2 import R2D2
from rlrun.types import Sample, Segment


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
    """Passes of a ``QNet`` with an LSTM or GRU. Weights are views of the network's."""

    def __init__(self, net: QNet, grads: dict[int, np.ndarray] | None = None) -> None:
        """``grads``: data_ptr of a parameter -> array for its gradient; None: forward only."""
        assert isinstance(net.torso, MLP)
        assert isinstance(net.memory, LSTM | GRU)
        self.torso = DifferentiableMLP(net.torso.layers, grads)
        self.width = net.torso.size
        core = net.memory.core
        cell_grads = None if grads is None else [grads[p.data_ptr()] for p in core.all_weights[0]]
        self.memory = GatedPasses(core, cell_grads)
        self.heads = NumpyHeads(net, grads)
        self.trace: Trace | None = None

    def unroll(self, obs: np.ndarray, previous: np.ndarray, state: State) -> np.ndarray:
        """Return Q [T, B, A] of ``obs`` [T, B, F] and ``previous`` [T, B, P]; see ``QNet``."""
        self.trace = self.memory.unroll(self.inputs(obs, previous), state)
        h = self.trace.out
        return self.heads(h.reshape(-1, h.shape[-1])).reshape(*obs.shape[:2], -1)

    def warm(self, obs: np.ndarray, previous: np.ndarray, state: State, real: np.ndarray) -> State:
        """Return the state after the burn-in; ``real`` bool [T, B]: rows that are not filler."""
        if not len(obs):
            return state
        return self.memory.unroll(self.inputs(obs, previous), state, filler=~real).state(-1)

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
        length, batch, actions = grad.shape
        h = self.heads.backward(grad.reshape(-1, actions), inputs=True)
        deep = bool(self.torso.layers)
        h = self.memory.backward(
            self.trace, h.reshape(length, batch, -1), inputs=self.width if deep else 0
        )
        if deep:
            self.torso.backward(h, inputs=False)


@jit_ieee
def _network_inputs(
    obs: np.ndarray, rows: Any, before: Any, shaping: Any, x: np.ndarray, previous: np.ndarray
) -> None:
    """Fill the zero arrays ``x`` [S, B, F] and ``previous`` [S, B, P] where rows are readable.

    ``rows``: action, reward, first, terminated, valid [T, B] of windows. ``before``: action and
    reward [B] of the row before each. ``shaping``: scale and clip of rewards.
    """
    action, reward, first, terminated, valid = rows
    (prev_action, prev_reward), (scale, clip) = before, shaping
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
    q: np.ndarray, q_target: np.ndarray, action: np.ndarray, rows: Any, weight: np.ndarray,
    rule: Any, grad: np.ndarray, priority: np.ndarray,
) -> tuple[float, float, float, float, float]:  # fmt: skip
    """Fill the priorities [B] and ``grad`` [L, B, A] (zeros), d loss / d q of the learned rows.

    All arrays begin after the burn-in: ``q``, ``q_target`` [L + n, B, A], ``action`` [T, B],
    ``rows``: reward, terminated, truncated, valid [T, B]. ``rule``: see ``reward_rule``; double,
    eps of h (negative: no rescaling), td_clip, eta. Returns ``TD_METRICS``.
    """
    reward, terminated, truncated, valid = rows
    ((scale, clip), powers), double, eps, td_clip, eta = rule
    length, batch, _ = grad.shape
    loss = sizes = predictions = targets = 0.0
    count = 0
    for b in range(batch):
        largest, total, valid_rows = ZERO, 0.0, 0
        for t in range(length):
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
            grad[t, b, action[t, b]] = -clipped * weight[b] / np.float32(length * batch)
            loss += float(weight[b] * clipped * (delta - HALF * clipped))
            largest = max(largest, abs(delta))
            total += float(abs(delta))
            predictions += float(prediction)
            targets += float(target)
            valid_rows += 1
        priority[b] = eta * largest + (ONE - eta) * np.float32(total / max(valid_rows, 1))
        sizes += total
        count += valid_rows
    divisor = max(count, 1)
    return (
        loss / (length * batch), sizes / divisor, predictions / divisor, targets / divisor,
        count / (length * batch),
    )  # fmt: skip


class R2D2Kernel:
    """The gradients of R2D2 for scalar action values, an MLP torso and an LSTM or GRU."""

    function = staticmethod(_td_errors)

    def __init__(self, policy: R2D2) -> None:
        self.policy, self.config, self.window = policy, policy.config, policy.window
        part = policy.parts["net"]
        self.online = NumpyRecurrentQNet(policy.net, flat_gradients(part))
        self.grads: dict[str, Any] = {"net": part.adam.flat_step}
        self.target = NumpyRecurrentQNet(policy.target)
        assert isinstance(policy.net.torso, MLP)
        self.flatten = policy.net.torso.flatten
        c = self.config
        self.shaping, _ = reward_rule(c)
        powers = np.float32(c.gamma) ** np.arange(c.nstep + 1, dtype=np.float32)
        eps, td_clip = or_else(c.value_rescale_eps, -1), or_else(c.td_clip, np.inf)
        rewards = self.shaping, powers
        self.rule = rewards, c.double, eps, td_clip, np.float32(c.priority_eta)

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
        action, rows = segment.action.numpy()[bs:], tuple(x[bs:] for x in rows_of(segment))
        grad = np.zeros((learned, *q.shape[1:]), np.float32)
        priority = np.empty(len(weight), np.float32)
        metrics = _td_errors(q, q_target, action, rows, weight, self.rule, grad, priority)
        self.online.backward(grad)
        named = dict(zip(TD_METRICS, metrics, strict=True))
        return Gradients(self.grads, torch.from_numpy(priority), named)

    def inputs(self, segment: Segment) -> tuple[np.ndarray, np.ndarray]:
        """Return flat observations [S, B, F] and previous action and reward [S, B, P].

        Equal to ``functional.rows.network_inputs`` and ``QNet.encode_previous``: zero in rows that
        are not readable or have no row before them. P = 0 without ``prev_inputs``.
        """
        obs = self.flatten(segment.obs).numpy()
        size = self.policy.net.actions + 1 if self.config.prev_inputs else 0
        x, previous = np.zeros_like(obs), np.zeros((*obs.shape[:2], size), np.float32)
        s, extras = segment, segment.extras
        acted_on = extras.get(RAW_REWARD, s.reward)
        rows = tuple(x.numpy() for x in (s.action, acted_on, s.first, s.terminated, s.valid))
        before = extras["prev_action"].numpy(), extras["prev_reward"].numpy()
        _network_inputs(obs, rows, before, self.shaping, x, previous)
        return x, previous

    def start_state(self, segment: Segment) -> State:
        """Return the state [B, H] from which windows start."""
        return tuple(s.numpy() for s in self.policy.start_state(segment))
