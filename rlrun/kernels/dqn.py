"""Gradients of DQN and PQN with feed-forward networks in numpy. Torch computes only returns.

Half the time of an update of 64 rows through 256 x 256 units is matrix products, and half is the
overhead of some eighty torch operations. Calls of numpy cost a third of that. Numbers agree with
``DQN.loss`` to 1e-5.
"""

import time
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.functional.returns import NStep, nstep_return
from rlrun.functional.rows import shape_reward
from rlrun.functional.value import td_target
from rlrun.kernels.mlp import DifferentiableMLP, as_metrics, flat_gradients
from rlrun.nets.qnet import QNet
from rlrun.nets.torso import MLP, flatten
from rlrun.policy.base import Gradients
from rlrun.policy.dqn import DQN
from rlrun.policy.pqn import PQN
from rlrun.policy.rollout import Minibatch, RolloutRows, split_range
from rlrun.schema import DQNConfig
from rlrun.types import Sample, Segment, tree_map


class NumpyHeads:
    """Forward and backward passes of the heads of a ``QNet``. Weights are views of the
    network's.
    """

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
        both: np.ndarray = of_value + self.advantage.backward(centred, inputs=inputs)
        return both


class NumpyQNet:
    """Forward and backward passes of a ``QNet`` without memory. Weights are views of the
    network's.
    """

    def __init__(self, net: QNet, grads: dict[int, np.ndarray] | None = None) -> None:
        """``grads``: data_ptr of a parameter -> array for its gradient; None: forward only."""
        assert isinstance(net.torso, MLP)
        self.space = net.torso.space
        self.torso = DifferentiableMLP(net.torso.layers, grads)
        self.heads = NumpyHeads(net, grads)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return action values [B, A] of flat observations [B, F]."""
        return self.heads(self.torso(x))

    def backward(self, grad: np.ndarray) -> None:
        """Write the gradients of the parameters; ``grad`` [B, A]: d loss / d q of the last call."""
        deep = bool(self.torso.layers)
        h = self.heads.backward(grad, inputs=deep)
        if deep:
            self.torso.backward(h, inputs=False)


class DQNKernel:
    """The gradients of DQN for scalar action values of single rows."""

    def __init__(self, policy: DQN[DQNConfig]) -> None:
        self.config = policy.config
        self.online = NumpyQNet(policy.net, flat_gradients(policy.parts["net"].adam))
        self.select, self.target = NumpyQNet(policy.net), NumpyQNet(policy.target)
        self.row = np.arange(0)

    @torch.no_grad()
    def gradients(self, sample: Sample) -> Gradients:
        """Return the gradients of ``DQN.loss``, priorities and metrics."""
        c, segment = self.config, sample.segment
        ends = (segment.terminated, segment.truncated, segment.valid)
        reward = shape_reward(segment.reward, c.reward_scale, c.reward_clip)
        n = nstep_return(reward, *ends, nstep=c.nstep, gamma=c.gamma)
        obs, next_obs = self.inputs(segment, n)
        if len(self.row) != len(obs):
            self.row = np.arange(len(obs))
        row, valid = self.row, segment.valid[0].numpy()
        action = np.where(valid, segment.action[0].numpy(), 0)

        q, q_target = self.online(obs), self.target(next_obs)
        next_action = (self.select(next_obs) if c.double else q_target).argmax(1)
        bootstrap = torch.from_numpy(q_target[row, next_action])
        eps = c.value_rescale_eps
        target = td_target(n.reward[0], n.discount[0], bootstrap, rescale_eps=eps).numpy()
        q_selected = q[row, action]
        delta = np.where(valid, target - q_selected, np.float32(0))
        clipped = delta if c.td_clip is None else np.clip(delta, -c.td_clip, c.td_clip)
        weighted = clipped * (sample.weight.numpy() / np.float32(len(row)))

        began = time.perf_counter()
        grad = np.zeros_like(q)
        grad[row, action] = -weighted
        self.online.backward(grad)
        seconds = time.perf_counter() - began

        td_abs, count = np.abs(delta), max(1, np.count_nonzero(valid))
        loss = np.dot(weighted, delta - np.float32(0.5) * clipped)
        metrics = as_metrics(
            loss=loss,
            td_abs=td_abs.sum() / count,
            q_taken=q_selected.sum(where=valid) / count,
            target=target.sum(where=valid) / count,
            valid_fraction=valid.mean(),
        )
        return Gradients({"net": None}, torch.from_numpy(td_abs), metrics, seconds)

    def inputs(self, segment: Segment, n: NStep) -> tuple[np.ndarray, np.ndarray]:
        """Return float32 [B, F] of row 0 and of its bootstrap row, zeros where undefined."""
        steps, bootstraps = n.steps[0], n.discount[0].numpy() > 0

        def bootstrap_row(x: Tensor) -> Tensor:
            return x[1] if self.config.nstep == 1 else x[steps, torch.arange(len(steps))]

        obs = flatten(self.online.space, tree_map(lambda x: x[0], segment.obs))
        next_obs = flatten(self.online.space, tree_map(bootstrap_row, segment.obs))
        valid, zero = segment.valid[0].numpy(), np.float32(0)
        next_valid = (valid & bootstraps)[:, None]
        return np.where(valid[:, None], obs, zero), np.where(next_valid, next_obs, zero)


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
        """Return ``Minibatch.shuffle`` of the arrays."""
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
        """Return the metrics of ``PQN.loss`` for a minibatch with Q [N, A]."""
        action, target = (torch.from_numpy(x[None]) for x in batch[1:])
        valid = torch.ones_like(target, dtype=torch.bool)
        rows = replace(self.whole, action=action, target=target, valid=valid)  # all fields read
        with torch.no_grad():
            return self.policy.loss(rows, torch.from_numpy(q[None]))[1]
