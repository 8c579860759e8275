"""PQN's update of a feed-forward network in numpy; torch computes returns and RAdam only."""

import time
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from rlrun.kernels.dqn import NumpyQNet
from rlrun.kernels.mlp import IGNORE_OVERFLOW
from rlrun.nets.torso import flatten
from rlrun.policy.base.rollout import Minibatch, split_range
from rlrun.policy.pqn import PQN
from rlrun.types import Sample, Update

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]  # inputs [N, F], actions [N], targets [N]


class PQNKernel:
    """``PQN.torch_update`` for networks of linear layers."""

    def __init__(self, policy: PQN) -> None:
        self.policy, flat = policy, policy.adam.flatten()
        parts = zip(policy.adam.parameters, flat.grad_views, strict=True)
        self.net = NumpyQNet(policy.net, {p.data_ptr(): grad.numpy() for p, grad in parts})

    @torch.no_grad()
    @IGNORE_OVERFLOW
    def update(self, sample: Sample) -> Update:
        """Learn from a rollout."""
        policy, c = self.policy, self.policy.config
        lr = policy.rates_at(sample.env_steps)[0]
        rows = policy.prepare(sample.segment)
        x = flatten(self.net.space, rows.obs)
        q = torch.from_numpy(self.net(x.flatten(0, 1).numpy())).reshape(*x.shape[:2], -1)
        whole = policy.with_targets(rows, q)
        inputs = flatten(self.net.space, whole.obs).squeeze(0).numpy()
        rollout = inputs, whole.action.squeeze(0).numpy(), whole.target.squeeze(0).numpy()
        parts, steps = policy.num_minibatches(rows), 0
        for _ in range(c.epochs):
            batches = self.shuffle(rollout, parts)
            for batch in batches:
                q_batch, norm = self.minibatch(*batch, lr)
            steps += len(batches)
        metrics = policy.loss(minibatch_of(whole, batches[-1]), torch.from_numpy(q_batch[None]))[1]
        metrics |= {"train/grad_norm": torch.tensor(norm), "train/lr": torch.tensor(lr)}
        return Update(None, metrics, steps=steps)

    def shuffle(self, rollout: Rows, parts: int) -> list[Rows]:
        """``Minibatch.shuffle``."""
        if parts == 1:
            return [rollout]
        order = self.policy.shuffle_generator.permutation(len(rollout[0]))
        x, action, target = (x.take(order, 0) for x in rollout)
        ranges = split_range(len(order), parts)
        return [(x[a:b], action[a:b], target[a:b]) for a, b in ranges]

    def minibatch(
        self, x: np.ndarray, action: np.ndarray, target: np.ndarray, lr: float
    ) -> tuple[np.ndarray, float]:
        """One gradient step on ``PQN.loss``; Q [N, A] before it, and the gradient's norm."""
        policy, q, row = self.policy, self.net(x), np.arange(len(x))
        began = time.perf_counter()
        grad = np.zeros_like(q)
        grad[row, action] = (q[row, action] - target) / np.float32(max(1, len(x)))
        self.net.backward(grad)
        backward = time.perf_counter()
        norm = policy.adam.flat_step(lr)
        policy.seconds["backward"] += backward - began
        policy.seconds["optimiser"] += time.perf_counter() - backward
        return q, norm


def minibatch_of(whole: Minibatch, rows: Rows) -> Minibatch:
    """The minibatch [1, N] of ``rows``, without what ``PQN.loss`` does not read."""
    action, target = (torch.from_numpy(x[None]) for x in rows[1:])
    valid: Tensor = torch.ones_like(target, dtype=torch.bool)
    return replace(whole, action=action, target=target, valid=valid)
