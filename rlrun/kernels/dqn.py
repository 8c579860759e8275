"""Updates of DQN with feed-forward networks by compiled loops (``off_policy``).

Numbers agree with ``DQN.loss`` to 1e-5.
"""

import time
from typing import cast

import numpy as np
import torch

from rlrun.kernels.off_policy import dqn_gradients
from rlrun.kernels.packed import (
    NOTHING,
    PackedPart,
    Table,
    or_else,
    reward_rule,
    window_of,
    zeros,
)  # fmt: skip
from rlrun.nets.torso import MLP, Stack
from rlrun.policy.base import Rates
from rlrun.policy.dqn import DQN
from rlrun.schema import DQNConfig
from rlrun.types import Sample, Update

METRICS = tuple(
    f"train/{name}" for name in ("loss", "td_abs", "q_taken", "target", "valid_fraction")
)


class DQNKernel:
    """Updates of DQN for scalar action values of single rows."""

    def __init__(self, policy: DQN[DQNConfig]) -> None:
        c, net, torso = policy.config, policy.net, policy.net.torso
        assert isinstance(torso, MLP)
        self.policy, self.space = policy, torso.space
        self.part = PackedPart(policy.parts["net"])
        table = Table(self.part.values)
        features = table.add_mlp(torso.layers, -1)
        streams = [table.add_mlp(cast("Stack", net.advantage), features)]
        if net.value is not None:
            streams.append(table.add_mlp(cast("Stack", net.value), features))
        outs = [table.rows[i].out for i in streams]
        at = outs[0], outs[1] if len(outs) > 1 else -1, net.actions
        self.net, self.width = (table.array(), at), table.width
        self.rewards = reward_rule(c)
        self.rule = c.double, or_else(c.value_rescale_eps, -1), or_else(c.td_clip, np.inf)
        self.work: tuple[np.ndarray, ...] = ()

    def update(self, sample: Sample, rates: Rates) -> Update:
        """Make the update of ``sample`` with the learning ``rates``."""
        policy, segment, part, (lr,) = self.policy, sample.segment, self.part, rates["net"]
        window, began = window_of(segment, self.space), time.perf_counter()
        td_abs, metrics = np.empty(len(sample.weight), np.float32), np.empty(5)
        dqn_gradients(
            self.net, part.values, part.grads, part.target, window, segment.action[0].numpy(),
            sample.weight.numpy(), self.rewards, self.rule, self.arrays(*window[0].shape[1:]),
            td_abs, metrics,
        )  # fmt: skip
        computed = time.perf_counter()
        norm = part.step(lr)
        policy.updates += 1
        if policy.config.target_tau is None:
            policy.update_targets("net")
        else:
            part.follow(policy.config.target_tau)
        policy.seconds["backward"] += computed - began
        policy.seconds["optimiser"] += time.perf_counter() - computed
        named = dict(zip(METRICS, metrics.tolist(), strict=True))
        return Update(torch.from_numpy(td_abs), named | {"train/grad_norm": norm, "train/lr": lr})

    def arrays(self, batch: int, size: int) -> tuple[np.ndarray, ...]:
        """Return arrays that an update of ``batch`` rows of ``size`` numbers overwrites.

        Inputs, return, discount, outputs of both networks, what normalisations keep (twice),
        gradients of outputs, and an empty array.
        """
        if not self.work or len(self.work[1]) != batch:
            rows, layers = 2 * batch, len(self.net[0])
            x, reward, discount, h, target_h, units, d = zeros(
                (rows * size, batch, batch, rows * self.width, batch * self.width,
                 rows * self.width, rows * self.width)
            )  # fmt: skip
            inverse = np.zeros((layers, rows), np.float32)
            self.work = x, reward, discount, h, target_h, units, inverse, d, NOTHING
        return self.work
