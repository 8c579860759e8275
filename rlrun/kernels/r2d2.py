"""R2D2's update with an MLP torso, an LSTM or GRU and linear heads: products and compiled loops.

Most of an update of 32 windows through 32 units in torch is the overhead of some two hundred small
operations. Numbers agree with ``R2D2.loss`` to 1e-5.
"""

from typing import Any, cast

import numpy as np
import torch

from rlrun.functional.rows import RAW_REWARD
from rlrun.jit import jit_ieee
from rlrun.kernels.gated import State, Trace
from rlrun.kernels.layers import (
    HALF,
    ONE,
    ZERO,
    F,
    action_values,
    action_values_backward,
    part,
)
from rlrun.kernels.nstep import (
    TD_METRICS,
    clamp,
    or_else,
    rescale,
    reward_rule,
    rows_of,
    unrescale,
)
from rlrun.kernels.recurrent import RecurrentPasses, Work, gradients_of, heads_backward
from rlrun.nets.memory.gated import GRU, LSTM
from rlrun.nets.torso import MLP
from rlrun.policy.base import Gradients
from rlrun.policy.optim import IGNORE_OVERFLOW
from rlrun.policy.r2d2 import R2D2
from rlrun.types import Sample, Segment


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
def _gradients(
    net: Any, g: np.ndarray, out: np.ndarray, work: Any, values: Any, action: np.ndarray, rows: Any,
    weight: np.ndarray, rule: Any, grad: np.ndarray, priority: np.ndarray, metrics: np.ndarray,
) -> None:  # fmt: skip
    """Write the gradients of the heads' parameters and of the memory's outputs.

    Arrays begin after the burn-in.

    Args:
        net: table of the heads' layers, ``heads`` of ``action_values``, parameters.
        g: gradients of all parameters, of which the heads' are filled.
        out: outputs of the memory, flat [L + n, B, H].
        work: arrays of the heads' pass.
        values: the target network's outputs of layers; Q and the target's to be filled
            [(L + n) B, A].
        action: [T, B]
        rows: reward, terminated, truncated, valid [T, B].
        weight: importance weights [B].
        rule: see ``reward_rule``; double, eps of h (negative: no rescaling), td_clip, eta.
        grad: [L B, H], to be filled with d loss / d out of the learned rows.
        priority: [B], to be filled.
        metrics: to be filled [5]; see ``TD_METRICS``.
    """
    (layers, heads, p), (h, _, _, d), (target_h, q, q_target) = net, work, values
    reward, terminated, truncated, valid = rows
    ((scale, clip), powers), double, eps, td_clip, eta = rule
    batch, learned, room = len(weight), len(grad), len(q)
    action_values(h, layers, heads, room, q)
    action_values(target_h, layers, heads, room, q_target)
    advantage = part(d, layers[heads[0]], room)
    value_grad = part(d, layers[max(heads[1], 0)], room)
    loss = sizes = predictions = targets = 0.0
    count = 0
    for b in range(batch):
        largest, total, valid_rows = ZERO, 0.0, 0
        for t in range(learned // batch):
            at = t * batch + b
            if not valid[t, b]:
                action_values_backward(advantage, value_grad, heads[1] >= 0, at, 0, ZERO)
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
                end = (t + k) * batch + b
                value = q_target[end, np.argmax(q[end] if double else q_target[end])]
                target += powers[k] * (value if eps < ZERO else unrescale(value, eps))
            if eps >= ZERO:
                target = rescale(target, eps)
            prediction = q[at, action[t, b]]
            delta = target - prediction
            clipped = clamp(delta, td_clip)
            slope = -clipped * weight[b] / F(learned)
            action_values_backward(advantage, value_grad, heads[1] >= 0, at, action[t, b], slope)
            loss += float(weight[b] * clipped * (delta - HALF * clipped))
            largest = max(largest, abs(delta))
            total += float(abs(delta))
            predictions += float(prediction)
            targets += float(target)
            valid_rows += 1
        priority[b] = eta * largest + (ONE - eta) * F(total / max(valid_rows, 1))
        sizes += total
        count += valid_rows
    divisor = max(count, 1)
    metrics[0], metrics[1], metrics[2] = loss / learned, sizes / divisor, predictions / divisor
    metrics[3], metrics[4] = targets / divisor, count / learned
    heads_backward(layers, p, g, out, room, work, grad)


class R2D2Kernel:
    """The gradients of R2D2 for scalar action values, an MLP torso and an LSTM or GRU."""

    function = staticmethod(_gradients)  # see run/precompile.py

    def __init__(self, policy: R2D2) -> None:
        self.policy, self.config, self.window = policy, policy.config, policy.window
        learned = policy.parts["net"]
        flat, target = learned.flatten()
        memories = [cast("LSTM | GRU", net.memory) for net in (policy.net, policy.target)]
        torso, grads = cast("MLP", policy.net.torso), gradients_of(learned, memories[0])
        self.online = RecurrentPasses(learned, torso, memories[0], flat.values.numpy(), grads)
        self.target = RecurrentPasses(learned, torso, memories[1], target.numpy(), None)
        self.heads, _ = (x.heads.add_heads(policy.net, -1) for x in (self.online, self.target))
        self.flat = flat.grads.numpy()
        self.grads: dict[str, Any] = {"net": learned.adam.flat_step}
        self.flatten = torso.flatten
        c = self.config
        self.shaping, _ = reward_rule(c)
        powers = F(c.gamma) ** np.arange(c.nstep + 1, dtype=np.float32)
        eps, td_clip = or_else(c.value_rescale_eps, -1), or_else(c.td_clip, np.inf)
        rewards = self.shaping, powers
        self.rule = rewards, c.double, eps, td_clip, F(c.priority_eta)

    @torch.no_grad()
    def gradients(self, sample: Sample) -> Gradients:
        """Return the gradients of ``R2D2.loss``, priorities and metrics."""
        policy, segment, weight = self.policy, sample.segment, sample.weight.numpy()
        bs, learned = self.window.burnin, self.window.learned
        x, previous = self.inputs(segment)
        valid, state = segment.valid.numpy(), self.start_state(segment)

        @IGNORE_OVERFLOW  # also in other threads, to which that of ``update`` does not apply
        def unroll(net: RecurrentPasses) -> tuple[Trace, Work]:
            warm = net.warm(x[:bs], previous[:bs], state, valid[:bs])
            trace = net.run_memory(x[bs:], previous[bs:], warm)
            return trace, net.run_heads(trace)

        target_unroll = policy.compute.run_in_thread(lambda: unroll(self.target))
        net, (trace, work), (_, (target_h, *_)) = self.online, unroll(self.online), target_unroll()
        (room, batch, units), rows = trace.out.shape, tuple(x[bs:] for x in rows_of(segment))
        values = target_h, *np.empty((2, room * batch, policy.net.actions), np.float32)
        grad, priority = np.empty((learned * batch, units), np.float32), np.empty_like(weight)
        metrics = np.empty(len(TD_METRICS))
        _gradients(
            (net.head_layers, self.heads, net.p), self.flat, trace.out.reshape(-1), work, values,
            segment.action.numpy()[bs:], rows, weight, self.rule, grad, priority, metrics,
        )  # fmt: skip
        grad = net.memory.backward(trace, grad.reshape(learned, batch, units), inputs=net.width)
        net.torso_backward(self.flat, x[bs:], grad)
        named = dict(zip(TD_METRICS, metrics.tolist(), strict=True))
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
