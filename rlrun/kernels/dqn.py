"""Updates of DQN with feed-forward networks in compiled loops.

Numbers agree with ``DQN.loss`` to 1e-5.
"""

from typing import Any

import numpy as np
import torch

from rlrun.jit import jit_ieee
from rlrun.kernels.layers import (
    HALF,
    ZERO,
    F,
    PackedNet,
    action_values,
    action_values_backward,
    backward,
    forward,
    part,
)
from rlrun.kernels.nstep import (
    TD_METRICS,
    clamp,
    or_else,
    read_rows,
    rescale,
    reward_rule,
    unrescale,
    window_of,
)
from rlrun.nets.torso import MLP
from rlrun.policy.base import Gradients
from rlrun.policy.dqn import DQN
from rlrun.schema import DQNConfig
from rlrun.types import Sample


@jit_ieee
def gradients(
    net: Any, sample: Any, rule: Any, work: Any, td_abs: np.ndarray, metrics: np.ndarray
) -> None:
    """Write the gradients of DQN's loss.

    Args:
        net: table of layers, ``heads`` of ``action_values``, parameters, their gradients, and the
            parameters of the target network.
        sample: windows, see ``read_rows``; action, weight [B].
        rule: see ``reward_rule``; double, eps of the value rescaling (negative: none), td_clip.
        work: see ``DQNKernel.arrays``.
        td_abs: [B], to be filled with |delta|.
        metrics: to be filled [5]; see ``TD_METRICS``.
    """
    (layers, heads, p, g, target_p), (window, action, weight) = net, sample
    rewards, double, eps, td_clip = rule
    x, reward, discount, target_h, (q, next_q), (h, unit, inverse, d) = work
    valid, batch = window[1][3], len(weight)
    size = batch * window[0].shape[2]
    read_rows(window, rewards, x[:size], x[size:], reward, discount)
    forward(layers, target_p, x[size:], batch, target_h, unit, inverse)
    rows = 2 * batch if double else batch
    forward(layers, p, x, rows, h, unit, inverse)
    action_values(h, layers, heads, rows, q[:rows])
    action_values(target_h, layers, heads, batch, next_q)

    advantage = part(d, layers[heads[0]], rows)
    value_grad = part(d, layers[max(heads[1], 0)], rows)
    loss = sizes = predictions = targets = 0.0
    count = 0
    for b in range(batch):
        td_abs[b], weighted, taken = ZERO, ZERO, 0
        if valid[0, b]:
            target, taken = reward[b], action[b]
            if discount[b] > ZERO:
                choice = q[batch + b] if double else next_q[b]
                value = next_q[b, choice.argmax()]
                target += discount[b] * (value if eps < ZERO else unrescale(value, eps))
            if eps >= ZERO:
                target = rescale(target, eps)
            delta = target - q[b, taken]
            clipped = clamp(delta, td_clip)
            weighted = clipped * (weight[b] / F(batch))
            td_abs[b] = abs(delta)
            loss += float(weighted * (delta - HALF * clipped))
            sizes += float(td_abs[b])
            predictions += float(q[b, taken])
            targets += float(target)
            count += 1
        action_values_backward(advantage, value_grad, heads[1] >= 0, b, taken, -weighted)
    divisor = max(count, 1)
    metrics[0], metrics[1], metrics[2] = loss, sizes / divisor, predictions / divisor
    metrics[3], metrics[4] = targets / divisor, count / batch
    backward(layers, p, g, x, rows, batch, h, unit, inverse, d)


class DQNKernel:
    """The gradients of DQN for scalar action values of single rows."""

    function = staticmethod(gradients)

    def __init__(self, policy: DQN[DQNConfig]) -> None:
        self.policy, self.actions = policy, policy.net.actions
        c, torso = policy.config, policy.net.torso
        assert isinstance(torso, MLP)
        self.flatten, self.net = torso.flatten, PackedNet(policy.parts["net"])
        self.heads, net = self.net.add_action_values(policy.net), self.net
        self.layers = net.table()
        self.arguments = self.layers, self.heads, net.values, net.grads, net.target
        eps, td_clip = or_else(c.value_rescale_eps, -1), or_else(c.td_clip, np.inf)
        self.rule = reward_rule(c), c.double, eps, td_clip
        self.work: tuple[Any, ...] = ()

    def gradients(self, sample: Sample) -> Gradients:
        """Return the gradients of ``DQN.loss``, priorities and metrics."""
        segment, weight = sample.segment, sample.weight.numpy()
        window, action = window_of(segment, self.flatten), segment.action.numpy()[0]
        td_abs, metrics = np.empty(len(weight), np.float32), np.empty(5)
        gradients(
            self.arguments, (window, action, weight), self.rule,
            self.arrays(*window[0].shape[1:]), td_abs, metrics,
        )  # fmt: skip
        named = dict(zip(TD_METRICS, metrics.tolist(), strict=True))
        return Gradients({"net": self.net.step}, torch.from_numpy(td_abs), named)

    def arrays(self, batch: int, size: int) -> tuple[Any, ...]:
        """Return arrays that an update of ``batch`` rows of ``size`` numbers overwrites.

        Inputs (of rows, then of those from which targets bootstrap), return, discount, outputs of
        the target network, action values of both networks, and those of ``PackedNet.work``.
        """
        if not self.work or len(self.work[1]) != batch:
            x, reward, discount, target_h = (
                np.zeros(n, np.float32)
                for n in (2 * batch * size, batch, batch, batch * self.net.width)
            )
            values = tuple(np.zeros((n, self.actions), np.float32) for n in (2 * batch, batch))
            self.work = x, reward, discount, target_h, values, self.net.work(2 * batch)
        return self.work
