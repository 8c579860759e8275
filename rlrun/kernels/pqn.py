"""PQN's gradients of a feed-forward network in numpy; torch computes returns only."""

import time
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from rlrun.kernels.dqn import NumpyQNet
from rlrun.kernels.mlp import flat_gradients
from rlrun.nets.torso import flatten
from rlrun.policy.base import Gradients
from rlrun.policy.pqn import PQN
from rlrun.policy.rollout import Minibatch, RolloutRows, split_range

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]  # inputs [N, F], actions [N], targets [N]


class PQNKernel:
    """The gradients of ``PQN.loss`` for networks of linear layers."""

    def __init__(self, policy: PQN) -> None:
        self.policy = policy
        self.net = NumpyQNet(policy.net, flat_gradients(policy.parts["net"].adam))

    def values(self, rows: RolloutRows) -> Tensor:
        """Return Q [T+1, B, A]."""
        x = flatten(self.net.space, rows.obs)
        q = self.net(x.flatten(0, 1).numpy())
        return torch.from_numpy(q).reshape(*x.shape[:2], -1)

    def begin(self, whole: Minibatch, parts: int) -> Rows:
        """Return single rows [1, N] as arrays."""
        self.whole, inputs = whole, flatten(self.net.space, whole.obs)
        x, action, target = (x.squeeze(0).numpy() for x in (inputs, whole.action, whole.target))
        return x, action, target

    def shuffle(self, rollout: Rows, parts: int) -> list[Rows]:
        """``Minibatch.shuffle``."""
        if parts == 1:
            return [rollout]
        order = self.policy.shuffle_generator.permutation(len(rollout[0]))
        x, action, target = (x.take(order, 0) for x in rollout)
        ranges = split_range(len(order), parts)
        return [(x[a:b], action[a:b], target[a:b]) for a, b in ranges]

    def gradients(self, batch: Rows, env_steps: int, *, with_metrics: bool) -> Gradients:
        """Return the gradients of ``PQN.loss``."""
        x, action, target = batch
        q, row = self.net(x), np.arange(len(x))
        metrics = self.metrics(batch, q) if with_metrics else {}
        began = time.perf_counter()
        grad = np.zeros_like(q)
        grad[row, action] = (q[row, action] - target) / np.float32(max(1, len(x)))
        self.net.backward(grad)
        return Gradients({"net": None}, None, metrics, time.perf_counter() - began)

    def metrics(self, batch: Rows, q: np.ndarray) -> dict[str, Tensor]:
        """Return those of ``PQN.loss`` of a minibatch with Q [N, A]."""
        action, target = (torch.from_numpy(x[None]) for x in batch[1:])
        valid = torch.ones_like(target, dtype=torch.bool)
        rows = replace(self.whole, action=action, target=target, valid=valid)  # all that is read
        with torch.no_grad():
            return self.policy.loss(rows, torch.from_numpy(q[None]))[1]
